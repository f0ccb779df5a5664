//! Why a token of an issuer lets nobody in.

use axum::http::{HeaderValue, StatusCode, header};

use crate::problem::Problem;

/// Why a token of an issuer lets nobody in. What is said of it tells its bearer what to mend, and a stranger nothing: until the
/// signature is believed, it is only about what they sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Longer than any that is read.
    TooLong,
    /// Not three parts of base64url with JSON in them.
    Malformed,
    /// Five parts: encrypted.
    Encrypted,
    /// `alg` is none of those that are accepted.
    Algorithm,
    /// `crit`.
    Critical,
    /// `typ` says that it is something else.
    Type,
    /// Nobody here knows who issued it.
    UnknownIssuer,
    /// Its key is not among the issuer's.
    UnknownKey,
    /// Its key is for another algorithm.
    KeyMismatch,
    /// It names no key, and several would do.
    AmbiguousKey,
    /// Its signature is somebody else's.
    Signature,
    /// A claim is missing, or is not of the type that it has to be.
    Claim,
    /// For somebody else.
    Audience,
    /// Over.
    Expired,
    /// Not yet good.
    NotYet,
    /// Made in the future.
    Future,
    /// Good for longer than any may be.
    TooLasting,
    /// An ID token where an access token is wanted, or the other way round.
    Kind,
    /// Good only with a key that its sender proves to have.
    Bound,
    /// It does not say whose it is.
    Person,
    /// Taken back.
    Revoked,
    /// Its bearer belongs to no tenant here.
    NoTenant,
    /// The issuer's keys can't be had.
    Unavailable,
}

impl Refusal {
    /// All of them.
    #[cfg(test)]
    const ALL: [Self; 23] = [
        Self::TooLong,
        Self::Malformed,
        Self::Encrypted,
        Self::Algorithm,
        Self::Critical,
        Self::Type,
        Self::UnknownIssuer,
        Self::UnknownKey,
        Self::KeyMismatch,
        Self::AmbiguousKey,
        Self::Signature,
        Self::Claim,
        Self::Audience,
        Self::Expired,
        Self::NotYet,
        Self::Future,
        Self::TooLasting,
        Self::Kind,
        Self::Bound,
        Self::Person,
        Self::Revoked,
        Self::NoTenant,
        Self::Unavailable,
    ];

    /// A stable word for programs and metrics, and one sentence for people: plain ASCII, since it stands in a header, too.
    fn said(self) -> (&'static str, &'static str) {
        match self {
            Self::TooLong => ("too_long", "the token is longer than 16 KiB"),
            Self::Malformed => ("malformed", "the token is not a signed JWT in its compact form"),
            Self::Encrypted => ("encrypted", "the token is encrypted, and only signed ones are accepted"),
            Self::Algorithm => (
                "algorithm",
                "the token is not signed with one of RS256 to RS512, PS256 to PS512, ES256, ES384 and EdDSA",
            ),
            Self::Critical => ("critical_header", "the header of the token demands (crit) what is not supported here"),
            Self::Type => ("type", "the header of the token says (typ) that it is something else than is accepted"),
            Self::UnknownIssuer => ("unknown_issuer", "the token is of an issuer (iss) that is not known here"),
            Self::UnknownKey => ("unknown_key", "the token is signed with a key that is not among those of its issuer"),
            Self::KeyMismatch => ("key_mismatch", "the key of the token is not one for the algorithm that it names"),
            Self::AmbiguousKey => {
                ("ambiguous_key", "the token names no key (kid), and several of its issuer would fit")
            }
            Self::Signature => ("signature", "the signature of the token does not fit"),
            Self::Claim => ("claim", "a claim of the token (exp, nbf, iat, aud, jti) is missing or malformed"),
            Self::Audience => ("audience", "the token is for another audience (aud)"),
            Self::Expired => ("expired", "the token has expired (exp)"),
            Self::NotYet => ("not_yet_valid", "the token is not valid yet (nbf)"),
            Self::Future => ("issued_in_future", "the token was issued in the future (iat)"),
            Self::TooLasting => ("too_lasting", "the token is valid for longer (exp, iat) than is accepted here"),
            Self::Kind => {
                ("kind", "the token is an ID token where an access token is accepted, or the other way round")
            }
            Self::Bound => ("bound", "the token is bound to a key of its sender (cnf), which can not be checked here"),
            Self::Person => ("person", "the token does not say whose it is, in the claim that is read for it here"),
            Self::Revoked => ("revoked", "the token, or its bearer, is not accepted any more"),
            Self::NoTenant => ("no_tenant", "the token is good, but its bearer belongs to no tenant here"),
            Self::Unavailable => ("issuer_unavailable", "the keys of the issuer can not be read at the moment"),
        }
    }

    /// The stable word.
    pub(super) fn reason(self) -> &'static str {
        self.said().0
    }

    fn remedy(self) -> &'static str {
        match self {
            Self::Expired | Self::Revoked => "get a new token from the provider that issued it",
            Self::NotYet | Self::Future => "compare the clocks of the provider and of this server",
            Self::Audience
            | Self::Bound
            | Self::Claim
            | Self::Kind
            | Self::NoTenant
            | Self::Person
            | Self::TooLasting
            | Self::Type
            | Self::UnknownIssuer => {
                "have whoever runs this installation compare the token with what the file of issuers (`ESC_ISSUERS`) says"
            }
            _ => "send a token as the provider issued it, or an API token",
        }
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let (reason, words) = refusal.said();
        let (problem, error) = match refusal {
            Refusal::Unavailable => return Self::unavailable("issuer_unavailable", words),
            Refusal::NoTenant => (Self::new(StatusCode::FORBIDDEN, "no_tenant", words), "insufficient_scope"),
            _ => (
                Self::new(StatusCode::UNAUTHORIZED, "invalid_token", words)
                    .field("Authorization")
                    .with("reason", reason),
                "invalid_token",
            ),
        };
        let challenge = format!(r#"Bearer realm="escapement", error="{error}", error_description="{words}""#);
        let challenge = HeaderValue::from_str(&challenge).unwrap_or(HeaderValue::from_static("Bearer"));
        problem.remedy(refusal.remedy()).header(header::WWW_AUTHENTICATE, challenge)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn what_is_said_of_each_fits_into_a_challenge() {
        let reasons: BTreeSet<_> = Refusal::ALL.iter().map(|refusal| refusal.reason()).collect();
        assert_eq!(reasons.len(), Refusal::ALL.len());
        for refusal in Refusal::ALL {
            // RFC 6750, section 3: what may stand in `error_description`.
            let plain = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\';
            assert!(refusal.said().1.bytes().all(plain), "{refusal:?}");
        }
    }
}
