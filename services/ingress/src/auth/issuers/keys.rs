//! The public keys of an issuer, as a JWK set (RFC 7517) has them, and what they vouch for.

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind, Validation, decode};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::jwt::Jwt;
use super::refusal::Refusal;

/// Most keys of a set. The largest providers have about ten.
const MOST_KEYS: usize = 100;
/// How long the modulus of an RSA key is, in bytes: 2048 to 8192 bits.
const RSA_BYTES: std::ops::RangeInclusive<usize> = 256..=1024;
/// Longest exponent of an RSA key, in bytes.
const EXPONENT_BYTES: usize = 5;

/// Why something is no set of keys.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeySetError {
    /// It is something else.
    #[error("what came is not a JWK set")]
    Parse(#[from] serde_json::Error),
    /// Too many.
    #[error("there are {0} keys, and {MOST_KEYS} at most are read")]
    TooMany(usize),
    /// None that a token can be signed with.
    #[error("none of the {0} keys is one that a token may be signed with")]
    Nothing(usize),
}

/// The keys of an issuer.
#[derive(Debug)]
pub(super) struct KeySet {
    keys: Vec<Key>,
    /// Why others are not among them, by name.
    pub passed_over: Vec<(String, &'static str)>,
}

#[derive(Debug)]
struct Key {
    id: Option<String>,
    /// What it may sign with: one algorithm, or those of its kind if it names none. Never what a token says.
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

/// A set as it is written. Each key is read by itself: one that is wrong is not to keep out the others.
#[derive(Deserialize)]
struct WrittenSet {
    keys: Vec<Value>,
}

impl KeySet {
    /// Reads a set. Keys of other kinds, and those that can't be right, are passed over.
    pub(super) fn read(text: &[u8]) -> Result<Self, KeySetError> {
        let WrittenSet { keys: written } = serde_json::from_slice(text)?;
        if written.len() > MOST_KEYS {
            return Err(KeySetError::TooMany(written.len()));
        }
        let mut set = Self { keys: Vec::new(), passed_over: Vec::new() };
        for value in &written {
            match Key::read(value) {
                Ok(key) => set.keys.push(key),
                Err(why) => {
                    let name = value["kid"].as_str().unwrap_or("without a name");
                    set.passed_over.push((kernel::excerpt(name, 64), why));
                }
            }
        }
        if set.keys.is_empty() { Err(KeySetError::Nothing(written.len())) } else { Ok(set) }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// What a token says, if one of these keys signed it: the one that it names, or the only one that it can be.
    pub(super) fn verify(&self, jwt: &Jwt<'_>, rules: &Validation) -> Result<Map<String, Value>, Refusal> {
        for key in self.fitting(jwt.header.kid.as_deref(), jwt.header.alg)? {
            match key.decode(jwt.text, rules) {
                Err(Refusal::Signature) => {}
                known => return known,
            }
        }
        Err(Refusal::Signature)
    }

    fn fitting(&self, id: Option<&str>, algorithm: Algorithm) -> Result<Vec<&Key>, Refusal> {
        let fits = |key: &&Key| key.algorithms.contains(&algorithm);
        let Some(id) = id else {
            let fitting: Vec<_> = self.keys.iter().filter(fits).collect();
            return match fitting.len() {
                0 => Err(Refusal::UnknownKey),
                1 => Ok(fitting),
                _ => Err(Refusal::AmbiguousKey),
            };
        };
        let mut named: Vec<_> = self.keys.iter().filter(|key| key.id.as_deref() == Some(id)).collect();
        if named.is_empty() {
            return Err(Refusal::UnknownKey);
        }
        named.retain(fits);
        if named.is_empty() { Err(Refusal::KeyMismatch) } else { Ok(named) }
    }
}

impl Key {
    fn read(value: &Value) -> Result<Self, &'static str> {
        let jwk = Jwk::deserialize(value).map_err(|_| "it is not a JWK")?;
        if value.get("d").is_some() {
            return Err("it is a private key: whoever reads the set can sign tokens");
        }
        let is_for_something_else = jwk.common.public_key_use.as_ref().is_some_and(|is| *is != PublicKeyUse::Signature)
            || jwk.common.key_operations.as_ref().is_some_and(|can| !can.contains(&KeyOperations::Verify));
        if is_for_something_else {
            return Err("it is not for signatures");
        }
        let (key, mut algorithms) = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => (rsa(&jwk)?, AlgorithmFamily::Rsa.algorithms().to_vec()),
            // Both coordinates, after a byte that says so.
            AlgorithmParameters::EllipticCurve(of) if of.curve == EllipticCurve::P256 => {
                (of_size(&jwk, 1 + 2 * 32)?, vec![Algorithm::ES256])
            }
            AlgorithmParameters::EllipticCurve(of) if of.curve == EllipticCurve::P384 => {
                (of_size(&jwk, 1 + 2 * 48)?, vec![Algorithm::ES384])
            }
            AlgorithmParameters::OctetKeyPair(of) if of.curve == EllipticCurve::Ed25519 => {
                (of_size(&jwk, 32)?, vec![Algorithm::EdDSA])
            }
            _ => return Err("it is of a kind that is not accepted"),
        };
        if let Some(own) = jwk.common.key_algorithm {
            algorithms.retain(|algorithm| KeyAlgorithm::from(*algorithm) == own);
        }
        if algorithms.is_empty() {
            return Err("its algorithm is not one that is accepted of its kind");
        }
        Ok(Self { id: jwk.common.key_id, algorithms, key })
    }

    fn decode(&self, token: &str, rules: &Validation) -> Result<Map<String, Value>, Refusal> {
        let rules = Validation { algorithms: self.algorithms.clone(), ..rules.clone() };
        decode(token, &self.key, &rules).map(|token| token.claims).map_err(|error| refusal(error.kind()))
    }
}

fn rsa(jwk: &Jwk) -> Result<DecodingKey, &'static str> {
    let unread = "a number of it is not base64url";
    let key = DecodingKey::from_jwk(jwk).map_err(|_| unread)?;
    let DecodingKeyKind::RsaModulusExponent { n, e } = key.kind() else { return Err(unread) };
    let (n, e) = (without_zeros(n), without_zeros(e));
    if !RSA_BYTES.contains(&n.len()) {
        return Err("an RSA key has to be of 2048 to 8192 bits");
    }
    let is_odd = e.last().is_some_and(|last| last % 2 == 1);
    if !is_odd || *e == [1] || e.len() > EXPONENT_BYTES {
        return Err("its exponent is not one that an RSA key has");
    }
    Ok(DecodingKey::from_rsa_raw_components(n, e))
}

/// A number without the zeros that some write before it.
fn without_zeros(number: &[u8]) -> &[u8] {
    &number[number.iter().take_while(|byte| **byte == 0).count()..]
}

fn of_size(jwk: &Jwk, bytes: usize) -> Result<DecodingKey, &'static str> {
    let key = DecodingKey::from_jwk(jwk).map_err(|_| "a number of it is not base64url")?;
    let fits = key.try_get_as_bytes().is_ok_and(|point| point.len() == bytes);
    if fits { Ok(key) } else { Err("it is not as long as its curve wants") }
}

fn refusal(error: &ErrorKind) -> Refusal {
    match error {
        ErrorKind::InvalidSignature => Refusal::Signature,
        ErrorKind::InvalidAlgorithm | ErrorKind::InvalidKeyFormat => Refusal::KeyMismatch,
        ErrorKind::ExpiredSignature => Refusal::Expired,
        ErrorKind::ImmatureSignature => Refusal::NotYet,
        ErrorKind::InvalidAudience => Refusal::Audience,
        ErrorKind::InvalidIssuer => Refusal::UnknownIssuer,
        ErrorKind::MissingRequiredClaim(_) | ErrorKind::InvalidClaimFormat(_) => Refusal::Claim,
        _ => Refusal::Malformed,
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    // From RFC 7515 (A.2, A.3) and RFC 8037 (A.4): neither the keys nor the signatures were made here.
    const CLAIMS: &str =
        "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
    const N: &str = "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS\
        -pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtd\
        VMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ";
    const RS256: &str = "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9C\
        UAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC\
        -eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
    const X: &str = "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU";
    const Y: &str = "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0";
    const ES256: &str = "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";
    const ED_X: &str = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
    const ED_MESSAGE: &str = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc";
    const ED: &str = "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg";

    fn set(keys: &Value) -> KeySet {
        KeySet::read(json!({ "keys": keys }).to_string().as_bytes()).unwrap()
    }

    fn rsa_key() -> Value {
        json!({"kty": "RSA", "n": N, "e": "AQAB"})
    }

    fn ec_key() -> Value {
        json!({"kty": "EC", "crv": "P-256", "x": X, "y": Y})
    }

    fn ed_key() -> Value {
        json!({"kty": "OKP", "crv": "Ed25519", "x": ED_X})
    }

    fn with(mut key: Value, name: &str, value: impl Into<Value>) -> Value {
        key[name] = value.into();
        key
    }

    fn rules() -> Validation {
        let mut rules = Validation::new(Algorithm::RS256);
        rules.set_issuer(&["joe"]);
        rules
    }

    #[test]
    fn what_the_standards_signed_is_believed_and_not_a_bit_beside_it() {
        for (header, signature, key) in
            [("eyJhbGciOiJSUzI1NiJ9", RS256, rsa_key()), ("eyJhbGciOiJFUzI1NiJ9", ES256, ec_key())]
        {
            let set = set(&json!([key]));
            let told = |text: &str| set.verify(&Jwt::read(text).unwrap(), &rules()).unwrap_err();
            // Its time was in 2011: that is looked at once the signature fits.
            assert_eq!(told(&format!("{header}.{CLAIMS}.{signature}")), Refusal::Expired);
            let others = [
                format!("{header}.{CLAIMS}.{}", signature.replacen('3', "4", 1)),
                format!("{header}.{}.{signature}", CLAIMS.replace("Imh0dHA6", "ImI0dHA6")),
                format!("{header}.{CLAIMS}."),
                format!("{header}.{CLAIMS}.{}", "A".repeat(signature.len())),
            ];
            for other in others {
                assert_eq!(told(&other), Refusal::Signature, "{other}");
            }
        }
        let key = Key::read(&ed_key()).unwrap();
        let told = |text: &str| key.decode(text, &rules()).unwrap_err();
        assert_eq!(told(&format!("{ED_MESSAGE}.{ED}")), Refusal::Malformed, "it is signed, but speaks English");
        assert_eq!(told(&format!("{ED_MESSAGE}.{}", ED.replacen('h', "i", 1))), Refusal::Signature);
    }

    #[test]
    fn a_key_is_for_its_own_algorithm_whatever_the_token_says() {
        let set = set(&json!([
            with(rsa_key(), "kid", "r"),
            with(with(rsa_key(), "kid", "r256"), "alg", "RS256"),
            with(ec_key(), "kid", "e"),
            with(ed_key(), "kid", "d"),
        ]));
        let fits = |id: Option<&str>, algorithm| set.fitting(id, algorithm).map(|keys| keys.len());
        assert_eq!(fits(Some("r"), Algorithm::PS512), Ok(1));
        assert_eq!(fits(Some("r256"), Algorithm::RS256), Ok(1));
        assert_eq!(fits(Some("r256"), Algorithm::PS256), Err(Refusal::KeyMismatch));
        assert_eq!(fits(Some("e"), Algorithm::RS256), Err(Refusal::KeyMismatch));
        assert_eq!(fits(Some("r"), Algorithm::ES256), Err(Refusal::KeyMismatch));
        assert_eq!(fits(Some("e"), Algorithm::ES384), Err(Refusal::KeyMismatch));
        assert_eq!(fits(Some("d"), Algorithm::ES256), Err(Refusal::KeyMismatch));
        assert_eq!(fits(Some("R"), Algorithm::RS256), Err(Refusal::UnknownKey));
        // Without a name only what can be meant in one way.
        assert_eq!(fits(None, Algorithm::ES256), Ok(1));
        assert_eq!(fits(None, Algorithm::EdDSA), Ok(1));
        assert_eq!(fits(None, Algorithm::RS384), Ok(1));
        assert_eq!(fits(None, Algorithm::RS256), Err(Refusal::AmbiguousKey));
        assert_eq!(fits(None, Algorithm::ES384), Err(Refusal::UnknownKey));
    }

    #[test]
    fn keys_that_are_no_good_are_passed_over_and_the_others_count() {
        let short = URL_SAFE_NO_PAD.encode([0xff; 128]);
        let bad = [
            json!({"kty": "oct", "k": "c2VjcmV0"}),
            json!({"kty": "AKP", "alg": "ML-DSA-65", "pub": "AA"}),
            json!({"kty": "EC", "crv": "P-521", "x": X, "y": Y}),
            json!({"kty": "EC", "crv": "secp256k1", "x": X, "y": Y}),
            json!({"kty": "OKP", "crv": "X25519", "x": ED_X}),
            with(ed_key(), "x", "AAAA"),
            with(ec_key(), "x", "AAAA"),
            with(ec_key(), "x", "!"),
            with(ec_key(), "d", X),
            with(rsa_key(), "d", "AQAB"),
            with(rsa_key(), "n", short),
            with(rsa_key(), "n", URL_SAFE_NO_PAD.encode([0xff; 1025])),
            with(rsa_key(), "e", "AQ"),
            with(rsa_key(), "e", "Ag"),
            with(rsa_key(), "e", ""),
            with(rsa_key(), "use", "enc"),
            with(rsa_key(), "key_ops", json!(["encrypt"])),
            with(rsa_key(), "alg", "RSA-OAEP"),
            with(rsa_key(), "alg", "HS256"),
            with(rsa_key(), "alg", "ES256"),
            with(ec_key(), "alg", "RS256"),
            with(ec_key(), "kid", 7),
            json!({"kid": "no kty"}),
            json!("nonsense"),
            json!(null),
        ];
        let many = bad.len();
        for key in &bad {
            assert!(Key::read(key).is_err(), "{key}");
        }
        let good = [
            with(rsa_key(), "n", URL_SAFE_NO_PAD.encode([&[0][..], &URL_SAFE_NO_PAD.decode(N).unwrap()].concat())),
            with(ec_key(), "use", "sig"),
            with(ed_key(), "alg", "EdDSA"),
            with(with(rsa_key(), "x5c", json!(["AA"])), "key_ops", json!(["verify"])),
        ];
        let set = set(&bad.into_iter().chain(good).collect());
        assert_eq!((set.len(), set.passed_over.len()), (4, many));
        assert!(set.passed_over.iter().any(|(name, _)| name == "no kty"), "{set:?}");
    }

    #[test]
    fn a_set_has_some_keys_and_not_too_many() {
        let read = |keys: Value| KeySet::read(json!({ "keys": keys }).to_string().as_bytes()).map(|set| set.len());
        assert_eq!(read(vec![ec_key(); MOST_KEYS].into()).unwrap(), MOST_KEYS);
        assert!(matches!(read(vec![ec_key(); MOST_KEYS + 1].into()), Err(KeySetError::TooMany(101))));
        assert!(matches!(read(json!([])), Err(KeySetError::Nothing(0))));
        assert!(matches!(read(json!([{"kty": "oct", "k": "AA"}])), Err(KeySetError::Nothing(1))));
        for text in ["", "{}", "[]", "<html>", r#"{"keys": {}}"#] {
            assert!(matches!(KeySet::read(text.as_bytes()), Err(KeySetError::Parse(_))), "{text}");
        }
    }

    fn anything() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            any::<i64>().prop_map(Value::from),
            "[A-Za-z0-9_-]{0,90}".prop_map(Value::from),
            prop_oneof!["RSA", "EC", "OKP", "P-256", "P-384", "Ed25519", "sig", "RS256", "EdDSA"].prop_map(Value::from),
            Just(json!(["verify"])),
        ]
    }

    proptest! {
        #[test]
        fn no_set_is_too_much(
            text in proptest::collection::vec(any::<u8>(), 0..200),
            keys in proptest::collection::vec(
                proptest::collection::btree_map(
                    prop_oneof!["kty", "kid", "alg", "use", "key_ops", "crv", "n", "e", "x", "y"],
                    anything(),
                    0..10,
                ),
                0..4,
            ),
        ) {
            let _ = KeySet::read(&text);
            let _ = KeySet::read(json!({ "keys": keys }).to_string().as_bytes());
        }
    }
}
