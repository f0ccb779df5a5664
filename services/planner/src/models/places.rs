//! Where providers are, how they are spoken to, and what key they may be shown.

use super::{ModelName, failure::ModelError, wire::Wire};

/// A provider that is known by name.
struct Known {
    /// As in an agent's file; the first is the name in the GenAI conventions and in the list of prices.
    names: &'static [&'static str],
    wire: Wire,
    url: &'static str,
    /// The variable in which its own tools look for the key; none if it wants no key.
    key: Option<&'static str>,
}

const fn like_openai(names: &'static [&'static str], url: &'static str, key: &'static str) -> Known {
    Known { names, wire: Wire::Chat(false), url, key: Some(key) }
}

const OPENAI_URL: &str = "https://api.openai.com/v1/";
const OPENAI_KEY: Option<&str> = Some("OPENAI_API_KEY");

const KNOWN: [Known; 14] = [
    // OpenAI offers all its models by the responses; the chat completions are for servers like it.
    Known { names: &["openai", "openai-responses"], wire: Wire::Responses, url: OPENAI_URL, key: OPENAI_KEY },
    Known { names: &["openai-chat"], wire: Wire::Chat(true), url: OPENAI_URL, key: OPENAI_KEY },
    Known {
        names: &["anthropic"],
        wire: Wire::Anthropic,
        url: "https://api.anthropic.com/v1/",
        key: Some("ANTHROPIC_API_KEY"),
    },
    Known {
        names: &["gemini", "google"],
        wire: Wire::Gemini,
        url: "https://generativelanguage.googleapis.com/v1beta/",
        key: Some("GEMINI_API_KEY"),
    },
    Known { names: &["ollama"], wire: Wire::Chat(false), url: "http://localhost:11434/v1/", key: None },
    like_openai(&["deepseek"], "https://api.deepseek.com/v1/", "DEEPSEEK_API_KEY"),
    like_openai(
        &["qwen", "alibaba", "aliyun"],
        "https://dashscope-intl.aliyuncs.com/compatible-mode/v1/",
        "DASHSCOPE_API_KEY",
    ),
    like_openai(&["xai"], "https://api.x.ai/v1/", "XAI_API_KEY"),
    like_openai(&["groq"], "https://api.groq.com/openai/v1/", "GROQ_API_KEY"),
    like_openai(&["mistral"], "https://api.mistral.ai/v1/", "MISTRAL_API_KEY"),
    like_openai(&["openrouter"], "https://openrouter.ai/api/v1/", "OPENROUTER_API_KEY"),
    like_openai(&["together"], "https://api.together.xyz/v1/", "TOGETHER_API_KEY"),
    like_openai(&["fireworks"], "https://api.fireworks.ai/inference/v1/", "FIREWORKS_API_KEY"),
    like_openai(&["moonshot"], "https://api.moonshot.ai/v1/", "MOONSHOT_API_KEY"),
];

/// Where a model is asked, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The provider's name in the GenAI conventions.
    pub provider: String,
    /// How it is spoken to.
    pub wire: Wire,
    /// Its address, with a slash at the end.
    pub url: reqwest::Url,
    /// The key that goes along.
    pub key: Option<String>,
}

impl Place {
    /// The place of a model. `key` looks up a variable of the environment; `key_hosts` may be shown keys beside the
    /// providers' own hosts and this machine.
    ///
    /// # Errors
    /// When the provider is not known and no `base_url` is given, the key is missing, or the place may not be shown it.
    pub fn find(
        name: &ModelName,
        base_url: Option<&str>,
        key_hosts: &[String],
        key: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ModelError> {
        let known = KNOWN.iter().find(|known| known.names.contains(&name.provider.as_str()));
        let variable = match known {
            Some(known) => known.key.map(str::to_owned),
            None => Some(format!("{}_API_KEY", name.provider.to_ascii_uppercase().replace(['-', '.'], "_"))),
        };
        let found = variable.as_deref().and_then(&key).filter(|key| !key.trim().is_empty());
        let provider = known.map_or(name.provider.as_str(), |known| known.names[0]).to_owned();
        let Some(given) = base_url else {
            let known = known.ok_or_else(|| {
                let names: Vec<_> = KNOWN.iter().map(|known| known.names[0]).collect();
                ModelError::misconfigured(format!(
                    "provider `{}` is not known: give a `base_url` that speaks like OpenAI, or use one of {}",
                    kernel::excerpt(&name.provider, 60),
                    names.join(", ")
                ))
            })?;
            if let (None, Some(variable)) = (&found, &variable) {
                return Err(ModelError::misconfigured(format!(
                    "no key for {}: set {variable} in the planner's environment",
                    name.provider
                )));
            }
            return Ok(Self { provider, wire: known.wire, url: parsed(known.url)?, key: found });
        };
        let url = parsed(given)?;
        let own = known.map(|known| parsed(known.url)).transpose()?;
        if let (Some(_), Some(variable)) = (&found, &variable)
            && !may_see_key(&url, own.as_ref(), key_hosts)
        {
            let host = url.host_str().unwrap_or_default();
            return Err(ModelError::misconfigured(format!(
                "the key in {variable} is not shown to `{host}`: name the host in ESC_MODEL_HOSTS if it may see it, or \
                 name the provider otherwise in `model`"
            )));
        }
        let wire = match (name.provider.as_str(), known) {
            // Servers that speak like OpenAI speak chat completions, unless the agent's file says otherwise.
            ("openai", _) | (_, None) => Wire::Chat(false),
            (_, Some(known)) => known.wire,
        };
        Ok(Self {
            provider: provider_at(provider, &name.provider),
            wire,
            url: versioned(url, &name.provider),
            key: found,
        })
    }
}

/// A server that only speaks like OpenAI keeps the name that the agent's file gives it.
fn provider_at(conventional: String, named: &str) -> String {
    if named == "openai-chat" { "openai".to_owned() } else { conventional }
}

fn parsed(url: &str) -> Result<reqwest::Url, ModelError> {
    let with_slash = format!("{}/", url.trim().trim_end_matches('/'));
    let bad = |problem: &str| {
        ModelError::misconfigured(format!(
            "`base_url` `{}` {problem}, such as http://127.0.0.1:8000/v1",
            kernel::excerpt(url, 120)
        ))
    };
    let url = reqwest::Url::parse(&with_slash).map_err(|_| bad("is no address"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(bad("must begin with http:// or https://"));
    }
    Ok(url)
}

/// Ollama's own address has no version in it.
fn versioned(mut url: reqwest::Url, provider: &str) -> reqwest::Url {
    if provider == "ollama" && url.path() == "/" {
        url.set_path("/v1/");
    }
    url
}

/// Whoever may write an agent's file names a place; that alone must not get them the key of a provider.
fn may_see_key(url: &reqwest::Url, own: Option<&reqwest::Url>, key_hosts: &[String]) -> bool {
    let Some(host) = url.host_str() else { return false };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let is_here = host == "localhost" || bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    let is_own = own.is_some_and(|own| own.host_str() == Some(host) && url.scheme() == "https");
    let with_port = url.port().map(|port| format!("{host}:{port}"));
    is_here || is_own || key_hosts.iter().any(|named| named == host || Some(named) == with_port.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(name: &str, base_url: Option<&str>, keys: &[&str]) -> Result<Place, ModelError> {
        let hosts = ["proxy.internal".to_owned(), "other.internal:8443".to_owned()];
        Place::find(&name.parse().unwrap(), base_url, &hosts, |wanted| keys.contains(&wanted).then(|| "k".to_owned()))
    }

    #[test]
    fn a_missing_key_is_named() {
        for (model, variable) in [
            ("openai:m", "OPENAI_API_KEY"),
            ("anthropic:m", "ANTHROPIC_API_KEY"),
            ("google:m", "GEMINI_API_KEY"),
            ("deepseek:m", "DEEPSEEK_API_KEY"),
            ("qwen:m", "DASHSCOPE_API_KEY"),
        ] {
            let error = find(model, None, &[]).unwrap_err();
            assert!(error.to_string().contains(variable), "{error}");
            assert_eq!(find(model, None, &[variable]).unwrap().key.as_deref(), Some("k"));
        }
        assert_eq!(find("ollama:llama", None, &[]).unwrap().key, None);
    }

    #[test]
    fn an_unknown_provider_needs_a_place() {
        assert!(find("mine:m", None, &[]).unwrap_err().to_string().contains("base_url"));
        let mine = find("mine:m", Some("http://10.0.0.1:8000/v1"), &[]).unwrap();
        assert_eq!((mine.wire, mine.url.as_str(), mine.key), (Wire::Chat(false), "http://10.0.0.1:8000/v1/", None));
        for bad in ["", "127.0.0.1:80", "file:///etc/passwd", "ftp://x/v1"] {
            assert!(find("mine:m", Some(bad), &[]).unwrap_err().to_string().contains("base_url"), "{bad}");
        }
    }

    #[test]
    fn keys_stay_with_their_providers() {
        let key = &["OPENAI_API_KEY", "MINE_API_KEY"][..];
        for (model, url) in [
            ("openai:m", "https://evil.example/v1"),
            ("openai:m", "https://api.openai.com.evil.example/v1"),
            ("openai:m", "http://api.openai.com/v1"),
            ("mine:m", "https://evil.example/v1"),
            ("openai:m", "https://api.openai.com@evil.example/v1"),
            ("openai:m", "https://other.internal/v1"),
        ] {
            let error = find(model, Some(url), key).unwrap_err();
            assert!(error.to_string().contains("ESC_MODEL_HOSTS"), "{url}: {error}");
            assert!(find(model, Some(url), &[]).is_ok(), "without a key there is nothing to keep");
        }
        for url in [
            "https://api.openai.com/v1",
            "http://127.0.0.1:8000/v1",
            "http://[::1]:8000/v1",
            "http://localhost/v1",
            "https://proxy.internal/v1",
            "https://other.internal:8443/v1",
        ] {
            assert_eq!(find("openai:m", Some(url), key).unwrap().key.as_deref(), Some("k"), "{url}");
        }
    }

    #[test]
    fn each_provider_is_spoken_to_in_its_own_way() {
        let keys = ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"];
        let wire = |name, url| find(name, url, &keys).unwrap().wire;
        assert_eq!(wire("openai:m", None), Wire::Responses);
        assert_eq!(wire("openai-chat:m", None), Wire::Chat(true));
        assert_eq!(wire("openai:m", Some("http://localhost:1/v1")), Wire::Chat(false));
        assert_eq!(wire("openai-responses:m", Some("http://localhost:1/v1")), Wire::Responses);
        assert_eq!(wire("anthropic:m", Some("http://localhost:1/v1")), Wire::Anthropic);
        assert_eq!(wire("google:m", None), Wire::Gemini);
        assert_eq!(find("google:m", None, &keys).unwrap().provider, "gemini");
        let ollama = |url| find("ollama:m", Some(url), &[]).unwrap().url.to_string();
        assert_eq!(ollama("http://gpu:11434"), "http://gpu:11434/v1/");
        assert_eq!(ollama("http://gpu:11434/v1"), "http://gpu:11434/v1/");
    }
}
