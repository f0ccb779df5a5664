//! A token as it comes: what has to be known of it before anybody can vouch for it.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::dangerous::insecure_decode_claims;
use jsonwebtoken::{Algorithm, AlgorithmFamily, Header, decode_header};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::refusal::Refusal;

/// Longest token that is read, in bytes. The providers' own are of one to eight thousand.
pub(super) const MOST_BYTES: usize = 16 * 1024;

/// A token that nobody has vouched for yet.
pub(super) struct Jwt<'a> {
    /// As it came.
    pub text: &'a str,
    /// How it is signed, and with what. Keys and addresses of keys in there (`jwk`, `jku`, `x5c`, `x5u`) are not looked at: a token
    /// does not say whom to believe.
    pub header: Header,
    /// Who is to vouch for it.
    pub issuer: String,
}

impl fmt::Debug for Jwt<'_> {
    /// Not the text: whoever has that has the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jwt").field("header", &self.header).field("issuer", &self.issuer).finish_non_exhaustive()
    }
}

/// The one claim that is read before the signature.
#[derive(Deserialize)]
struct Issued {
    iss: Option<Value>,
}

impl<'a> Jwt<'a> {
    /// Reads what can be read of a token.
    pub(super) fn read(text: &'a str) -> Result<Self, Refusal> {
        if text.len() > MOST_BYTES {
            return Err(Refusal::TooLong);
        }
        if text.bytes().filter(|byte| *byte == b'.').count() == 4 {
            return Err(Refusal::Encrypted);
        }
        let header = decode_header(text).map_err(|_| unreadable(text))?;
        if header.crit.is_some() {
            return Err(Refusal::Critical);
        }
        // What both sides know would have to be a secret: no public key is to pass for one.
        if header.alg.family() == AlgorithmFamily::Hmac {
            return Err(Refusal::Algorithm);
        }
        match insecure_decode_claims::<Issued>(text).map_err(|_| Refusal::Malformed)?.iss {
            Some(Value::String(issuer)) => Ok(Self { text, header, issuer }),
            _ => Err(Refusal::UnknownIssuer),
        }
    }

    /// What it says, whoever may have signed it.
    pub(super) fn claims(&self) -> Result<Map<String, Value>, Refusal> {
        insecure_decode_claims(self.text).map_err(|_| Refusal::Malformed)
    }
}

/// Why a header can't be read. If it names an algorithm that is none of those that there are (`none`), that is worth saying.
fn unreadable(text: &str) -> Refusal {
    let json = text.split('.').next().and_then(|part| URL_SAFE_NO_PAD.decode(part).ok());
    let header: Option<Value> = json.and_then(|json| serde_json::from_slice(&json).ok());
    match header.as_ref().and_then(|header| header["alg"].as_str()) {
        Some(name) if name.parse::<Algorithm>().is_err() => Refusal::Algorithm,
        _ => Refusal::Malformed,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn token(header: &str, claims: &str) -> String {
        format!("{}.{}.AA", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims))
    }

    fn refused(header: &str, claims: &str) -> Refusal {
        Jwt::read(&token(header, claims)).unwrap_err()
    }

    #[test]
    fn a_token_is_read_as_it_is_written() {
        let text = token(r#"{"alg":"ES256","kid":"k","typ":"at+jwt","jku":"https://evil.example"}"#, r#"{"iss":"i"}"#);
        let Jwt { header, issuer, .. } = Jwt::read(&text).unwrap();
        assert_eq!((header.alg, header.kid.as_deref(), issuer.as_str()), (Algorithm::ES256, Some("k"), "i"));
    }

    #[test]
    fn what_is_not_to_be_believed_is_not_even_looked_up() {
        let good = r#"{"iss":"i"}"#;
        for alg in ["none", "None", "NONE", "nOnE", "HS256", "HS384", "HS512", "ES256K", "ES512", "RSA-OAEP", "dir", ""]
        {
            assert_eq!(refused(&format!(r#"{{"alg":"{alg}"}}"#), good), Refusal::Algorithm, "{alg}");
        }
        for crit in [r#"["exp"]"#, r#"["b64"]"#, "[]"] {
            assert_eq!(refused(&format!(r#"{{"alg":"ES256","crit":{crit}}}"#), good), Refusal::Critical, "{crit}");
        }
        for (header, claims) in [
            (r#"{"kid":"k"}"#, good),
            (r#"{"alg":1}"#, good),
            (r#"{"alg":"ES256","alg":"ES256"}"#, good),
            (r#"{"alg":"ES256","kid":7}"#, good),
            (r#"{"alg":"ES256","crit":"exp"}"#, good),
            (r#"{"alg":"ES256"}"#, "7"),
            (r#"{"alg":"ES256"}"#, "nonsense"),
            (r#"{"alg":"ES256"}x"#, good),
            (r#"{"alg":"ES256"}"#, r#"{"iss":"i","iss":"j"}"#),
            ("", ""),
        ] {
            assert_eq!(refused(header, claims), Refusal::Malformed, "{header} {claims}");
        }
        for claims in ["{}", r#"{"iss":null}"#, r#"{"iss":7}"#, r#"{"iss":["i"]}"#] {
            assert_eq!(refused(r#"{"alg":"ES256"}"#, claims), Refusal::UnknownIssuer, "{claims}");
        }
        let good = token(r#"{"alg":"ES256"}"#, good);
        for text in ["", ".", "..", "a.b", &format!("{good}.AA"), &format!(" {good}")] {
            assert_eq!(Jwt::read(text).unwrap_err(), Refusal::Malformed, "{text}");
        }
        assert_eq!(Jwt::read("e30.a.b.c.d").unwrap_err(), Refusal::Encrypted);
        assert_eq!(Jwt::read(&"e".repeat(MOST_BYTES + 1)).unwrap_err(), Refusal::TooLong);
    }

    proptest! {
        #[test]
        fn no_text_is_too_much(text in ".{0,200}", header in ".{0,60}", claims in ".{0,60}") {
            let _ = Jwt::read(&text);
            let _ = Jwt::read(&token(&header, &claims));
            let _ = Jwt::read(&token(r#"{"alg":"ES256"}"#, &claims));
        }
    }
}
