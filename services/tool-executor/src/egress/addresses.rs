//! Which addresses are for the outside, and the look-up of names that knows no others.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// An address that a name leads to and that may not be reached.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` leads to no address that may be reached")]
pub(super) struct NotReachable(String);

/// Looks names up and hands out only the addresses that fit.
pub(crate) struct Only(pub fn(IpAddr) -> bool);

impl Resolve for Only {
    fn resolve(&self, name: Name) -> Resolving {
        let fits = self.0;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let fitting: Vec<_> = found.filter(|address| fits(address.ip())).collect();
            if fitting.is_empty() {
                return Err(NotReachable(name.as_str().to_owned()).into());
            }
            Ok(Box::new(fitting.into_iter()) as Addrs)
        })
    }
}

/// Whether an address is none of this link (169.254.0.0/16, fe80::/10), nor one at which a cloud keeps its metadata
/// elsewhere.
pub(super) fn is_no_link(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => !address.is_link_local() && address.octets() != [100, 100, 100, 200],
        IpAddr::V6(address) => {
            let segments = address.segments();
            (segments[0] & 0xffc0) != 0xfe80 && segments != [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254]
        }
    }
}

/// Whether an address is one of the public internet.
#[must_use]
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation()
        || a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 198 && (b == 18 || b == 19));
    !special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    // Addresses that carry an IPv4 one: mapped, compatible, translated, 6to4.
    let carried = match segments {
        [0, 0, 0, 0, 0, 0xffff | 0, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some((high, low)),
        [0x2002, high, low, ..] => Some((high, low)),
        _ => None,
    };
    if let Some((high, low)) = carried {
        return is_public_v4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    }
    // Global unicast, without documentation and Teredo.
    (segments[0] & 0xe000) == 0x2000 && !(segments[0] == 0x2001 && matches!(segments[1], 0 | 0x0db8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_public_internet_is_public() {
        for address in ["93.184.216.34", "8.8.8.8", "2606:2800:220:1::1", "::ffff:8.8.8.8"] {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
        for address in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.0.1",
            "169.254.169.254",
            "0.0.0.0",
            "100.64.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "198.18.0.1",
            "::1",
            "::",
            "fc00::1",
            "fe80::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "::127.0.0.1",
            "2001:db8::1",
        ] {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
    }
}
