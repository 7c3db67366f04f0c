//! From a URL and environment variables to clients.

use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::list::PaginatedListStore;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};
use url::Url;

use super::http::{self, Connector};
use super::profile;
use super::service::Service;
use crate::{Error, KEY_BYTES_MAX, Prefix};

/// All three services allow names of 1,024 bytes.
const NAME_BYTES_MAX: usize = 1024;

/// What a URL says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) service: Service,
    pub(super) bucket: String,
    pub(super) prefix: Prefix,
    pub(super) endpoint: Option<String>,
    pub(super) region: Option<String>,
    /// Whether an `ETag` goes into a condition in quotes, as HTTP has it. Ceph 16 compares it with the
    /// bare one, so that no condition with quotes ever holds there.
    pub(super) is_quoted: bool,
}

/// What every client of `object_store` for a service can do.
pub(super) trait Client: ObjectStore + PaginatedListStore {}
impl<T: ObjectStore + PaginatedListStore> Client for T {}

/// Two clients that share connections and credentials.
pub(super) struct Clients {
    /// Retries a few times.
    pub(super) reader: Arc<dyn Client>,
    /// Never retries.
    pub(super) writer: Arc<dyn Client>,
}

/// Both clients of a builder. The builders of the three services have these methods in common, but no trait.
macro_rules! clients {
    ($builder:expr, $options:expr) => {{
        let builder = $builder
            .with_client_options($options)
            .with_http_connector(Connector::default());
        let reader = builder.clone().with_retry(few_retries()).build()?;
        let writer = builder
            .with_credentials(reader.credentials().clone())
            .with_retry(no_retries())
            .build()?;
        Ok(Clients {
            reader: Arc::new(reader),
            writer: Arc::new(writer),
        })
    }};
}

impl Settings {
    /// Reads a URL. No part of it that could be a secret is repeated in an error.
    pub(super) fn parse(url: &Url) -> Result<Self, Error> {
        let service = match url.scheme() {
            "s3" => Service::S3,
            "gs" => Service::Gcs,
            "az" => Service::Azure,
            scheme => {
                return Err(Error::invalid(
                    format!("{scheme:?} is not the scheme of an object store"),
                    "use s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX",
                ));
            }
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Error::invalid(
                "the store URL contains a user name or password",
                service.credentials_hint(),
            ));
        }
        let (scheme, container) = (service.scheme(), service.container());
        let shape = format!("use {scheme}://{}/PREFIX", container.to_uppercase());
        let bucket = url.host_str().unwrap_or_default();
        if !is_bucket_name(bucket) || url.port().is_some() || url.fragment().is_some() {
            let what = format!("the store URL does not name a {container}");
            return Err(Error::invalid(what, shape));
        }
        let prefix = Prefix::new(url.path().strip_prefix('/').unwrap_or_default())?;
        if prefix.as_str().len() + KEY_BYTES_MAX > NAME_BYTES_MAX {
            let most = NAME_BYTES_MAX - KEY_BYTES_MAX;
            return Err(Error::invalid(
                format!("the prefix in the store URL is longer than {most} bytes"),
                "use a shorter prefix",
            ));
        }
        let mut settings = Self {
            service,
            bucket: bucket.to_owned(),
            prefix,
            endpoint: None,
            region: None,
            is_quoted: true,
        };
        for (name, value) in url.query_pairs() {
            settings.set(&name, &value)?;
        }
        Ok(settings)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), Error> {
        let known = self.service.parameters();
        match name {
            _ if !known.contains(&name) => {
                return Err(Error::invalid(
                    format!("{} URLs have no parameter {name:?}", self.service.scheme()),
                    format!("known parameters: {}", known.join(", ")),
                ));
            }
            "endpoint" => self.endpoint = Some(value.to_owned()),
            "region" => self.region = Some(value.to_owned()),
            _ => {
                self.is_quoted = match value {
                    "quoted" => true,
                    "unquoted" => false,
                    _ => {
                        return Err(Error::invalid(
                            format!("if_match cannot be {value:?}"),
                            "use if_match=quoted, or if_match=unquoted for Ceph",
                        ));
                    }
                };
            }
        }
        Ok(())
    }

    /// Where the objects are, for people: without anything secret.
    pub(super) fn location(&self) -> String {
        let prefix = self.prefix.as_str().trim_end_matches('/');
        let separator = if prefix.is_empty() { "" } else { "/" };
        let scheme = self.service.scheme();
        let name = format!("{scheme}://{}{separator}{prefix}", self.bucket);
        match self.endpoint.as_deref().and_then(authority) {
            Some(authority) => format!("{name} at {authority}"),
            None => name,
        }
    }

    /// Makes the clients. Of the environment variables in `variables`, those that the service's own tools use are read,
    /// and all others are ignored. The URL takes precedence.
    pub(super) fn connect(
        &mut self,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Clients, Error> {
        let variables: Vec<(String, String)> = variables
            .into_iter()
            .filter(|(_, value)| !value.is_empty())
            .collect();
        let variables = match self.service {
            Service::S3 => profile::add(variables)?,
            Service::Gcs | Service::Azure => variables,
        };
        if self.endpoint.is_none() {
            let value_of = |name: &&str| variables.iter().find(|(other, _)| other == name);
            let mut names = self.service.endpoint_variables().iter();
            self.endpoint = names.find_map(value_of).map(|(_, value)| value.clone());
        }
        let allow_http = match &self.endpoint {
            Some(endpoint) => check_endpoint(endpoint)? == "http",
            None => false,
        };
        let options = ClientOptions::new().with_allow_http(allow_http);
        let clients = match self.service {
            Service::S3 => self.connect_s3(&variables, options),
            Service::Gcs => self.connect_gcs(&variables, options),
            Service::Azure => self.connect_azure(&variables, options),
        };
        // The library's error may quote a key file or a key, so it is dropped.
        clients.map_err(|_| {
            if !allow_http && !http::has_authorities() {
                return Error::invalid(
                    "this host has no certificates of authorities, and https:// needs them",
                    "install ca-certificates, or set SSL_CERT_FILE",
                );
            }
            Error::invalid(
                format!(
                    "the environment variables for {} are incomplete or not valid",
                    self.service.name()
                ),
                self.service.credentials_hint(),
            )
        })
    }

    fn connect_s3(
        &self,
        variables: &[(String, String)],
        options: ClientOptions,
    ) -> object_store::Result<Clients> {
        use AmazonS3ConfigKey as Key;
        let mut builder = AmazonS3Builder::new();
        for (name, value) in variables
            .iter()
            .filter(|(name, _)| name.starts_with("AWS_"))
        {
            match name.to_ascii_lowercase().parse() {
                // The HTTP client is our own, and the endpoint is chosen already.
                Err(_) | Ok(Key::Client(_) | Key::Endpoint | Key::S3Endpoint) => {}
                Ok(key) => builder = builder.with_config(key, value),
            }
        }
        if let Some(region) = &self.region {
            builder = builder.with_region(region);
        }
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        let builder = builder
            .with_bucket_name(&self.bucket)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            // One object is deleted at a time, and every compatible service knows the plain DELETE.
            .with_disable_bulk_delete(true);
        clients!(builder, options)
    }

    fn connect_gcs(
        &self,
        variables: &[(String, String)],
        options: ClientOptions,
    ) -> object_store::Result<Clients> {
        let mut builder = GoogleCloudStorageBuilder::new();
        for (name, value) in variables
            .iter()
            .filter(|(name, _)| name.starts_with("GOOGLE_"))
        {
            match name.to_ascii_lowercase().parse() {
                Err(_) | Ok(GoogleConfigKey::Client(_) | GoogleConfigKey::BaseUrl) => {}
                Ok(key) => builder = builder.with_config(key, value),
            }
        }
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_base_url(endpoint.trim_end_matches('/'));
        }
        clients!(builder.with_bucket_name(&self.bucket), options)
    }

    fn connect_azure(
        &self,
        variables: &[(String, String)],
        options: ClientOptions,
    ) -> object_store::Result<Clients> {
        let mut builder = MicrosoftAzureBuilder::new();
        for (name, value) in variables {
            let key = match name.as_str() {
                // What Azure's command line reads, and the App Service sets.
                "AZURE_STORAGE_ACCOUNT" => Ok(AzureConfigKey::AccountName),
                "AZURE_STORAGE_KEY" => Ok(AzureConfigKey::AccessKey),
                "IDENTITY_ENDPOINT" => Ok(AzureConfigKey::MsiEndpoint),
                name if name.starts_with("AZURE_") => name.to_ascii_lowercase().parse(),
                _ => continue,
            };
            match key {
                Err(_) | Ok(AzureConfigKey::Client(_) | AzureConfigKey::Endpoint) => {}
                Ok(key) => builder = builder.with_config(key, value),
            }
        }
        if let Some(endpoint) = &self.endpoint {
            builder = builder
                .with_endpoint(endpoint.clone())
                // The emulator's fixed address would take precedence otherwise.
                .with_use_emulator(false);
        }
        clients!(builder.with_container_name(&self.bucket), options)
    }
}

/// For reads: a short failure should not reach the caller; an outage should, and soon.
fn few_retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_millis(500),
            base: 2.0,
        },
        max_retries: 2,
        retry_timeout: Duration::from_secs(5),
    }
}

/// For writes: a repeat of a conditional write that was applied looks like a conflict.
fn no_retries() -> RetryConfig {
    RetryConfig {
        max_retries: 0,
        ..few_retries()
    }
}

/// Checks an endpoint, and returns its scheme.
fn check_endpoint(endpoint: &str) -> Result<&'static str, Error> {
    let hint = "use https://HOST or, without encryption, http://HOST:PORT";
    let invalid = |what: &str| Err(Error::invalid(what, hint));
    let Ok(url) = Url::parse(endpoint) else {
        return invalid("the endpoint is not a URL");
    };
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() {
        return invalid("the endpoint contains a user name, a password or parameters");
    }
    match url.scheme() {
        "https" => Ok("https"),
        "http" => Ok("http"),
        _ => invalid("the endpoint is not an https or http URL"),
    }
}

/// The host and port of an endpoint.
fn authority(endpoint: &str) -> Option<String> {
    let url = Url::parse(endpoint).ok()?;
    let host = url.host_str()?;
    Some(match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    })
}

/// Whether this can be the name of a bucket on any of the services.
fn is_bucket_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=255).contains(&name.len()) && name.bytes().all(is_allowed) && !name.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Settings, Error> {
        Settings::parse(&Url::parse(url).unwrap())
    }

    #[test]
    fn a_url_names_service_bucket_prefix_and_parameters() {
        let settings =
            parse("s3://my.bucket/a/b/?endpoint=http://127.0.0.1:80&region=eu&if_match=unquoted");
        let settings = settings.unwrap();
        assert_eq!(settings.service, Service::S3);
        assert_eq!(settings.bucket, "my.bucket");
        assert_eq!(settings.prefix.as_str(), "a/b/");
        assert_eq!(settings.region.as_deref(), Some("eu"));
        assert!(!settings.is_quoted);
        assert_eq!(settings.location(), "s3://my.bucket/a/b at 127.0.0.1");

        let settings = parse("gs://bucket").unwrap();
        assert_eq!((settings.service, settings.is_quoted), (Service::Gcs, true));
        assert_eq!(settings.location(), "gs://bucket");
    }

    #[test]
    fn a_url_that_is_wrong_is_refused_with_the_reason() {
        for (url, reason, hint) in [
            (
                "s3:///prefix",
                "does not name a bucket",
                "s3://BUCKET/PREFIX",
            ),
            ("az:", "does not name a container", "az://CONTAINER/PREFIX"),
            ("s3://bucket:9000/", "does not name a bucket", "s3://BUCKET"),
            ("s3://buck%20et/", "does not name a bucket", "s3://BUCKET"),
            ("s3://bucket/a//b", "empty segment", "letters"),
            ("s3://bucket/a%20b", "contains '%'", "letters"),
            (
                "s3://bucket?regoin=eu",
                "no parameter \"regoin\"",
                "endpoint, region, if_match",
            ),
            (
                "gs://bucket?region=eu",
                "no parameter \"region\"",
                "endpoint",
            ),
            (
                "s3://bucket?if_match=no",
                "cannot be \"no\"",
                "if_match=unquoted",
            ),
        ] {
            let error = parse(url).expect_err(url);
            assert!(matches!(error, Error::Invalid { .. }), "{url}");
            assert!(error.to_string().contains(reason), "{url}: {error}");
            assert!(error.hint().contains(hint), "{url}: {}", error.hint());
        }
    }

    #[test]
    fn a_prefix_leaves_room_for_the_longest_key() {
        let (part, room) = ("x".repeat(161), NAME_BYTES_MAX - KEY_BYTES_MAX);
        let longest = format!("{part}/{part}");
        assert_eq!(longest.len() + 1, room);
        assert!(parse(&format!("s3://bucket/{longest}")).is_ok());
        let error = parse(&format!("s3://bucket/{longest}x")).unwrap_err();
        assert!(error.to_string().contains("324 bytes"), "{error}");
    }

    #[test]
    fn credentials_in_a_url_are_refused_and_not_repeated() {
        let error = parse("s3://me:hunter2@bucket/").unwrap_err();
        assert!(
            !format!("{error} {error:?}").contains("hunter2"),
            "{error:?}"
        );
        for endpoint in [
            "http://me:hunter2@host",
            "https://host?sig=hunter2",
            "hunter2",
        ] {
            let error = check_endpoint(endpoint).unwrap_err();
            assert!(
                !format!("{error} {error:?}").contains("hunter2"),
                "{error:?}"
            );
        }
    }

    #[test]
    fn the_url_counts_more_than_the_environment() {
        let variables = [
            ("AWS_ENDPOINT_URL", "https://general"),
            ("AWS_ENDPOINT_URL_S3", "https://special"),
            ("AWS_ACCESS_KEY_ID", "id"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_CONDITIONAL_PUT", "disabled"),
            ("AWS_BUCKET", "other"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let mut settings = parse("s3://bucket").unwrap();
        settings.connect(variables.clone()).unwrap();
        assert_eq!(settings.location(), "s3://bucket at special");
        let mut settings = parse("s3://bucket?endpoint=https://named").unwrap();
        let clients = settings.connect(variables).unwrap();
        assert_eq!(settings.location(), "s3://bucket at named");
        assert_eq!(clients.writer.to_string(), "AmazonS3(bucket)");
    }

    #[test]
    fn a_broken_environment_is_told_without_its_values() {
        for (url, variables) in [
            ("s3://bucket", vec![("AWS_ACCESS_KEY_ID", "hunter2")]),
            (
                "gs://bucket",
                vec![(
                    "GOOGLE_SERVICE_ACCOUNT_KEY",
                    "{\"private_key\":\"hunter2\"}",
                )],
            ),
            (
                "gs://bucket",
                vec![("GOOGLE_SERVICE_ACCOUNT_KEY", "\"hunter2\"")],
            ),
            (
                "az://container",
                vec![("AZURE_STORAGE_ACCOUNT_KEY", "hunter2")],
            ),
            (
                "az://container",
                vec![
                    ("AZURE_STORAGE_ACCOUNT_NAME", "name"),
                    ("AZURE_STORAGE_ACCOUNT_KEY", "hunter2!"),
                ],
            ),
        ] {
            let variables = variables
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()));
            let error = parse(url).unwrap().connect(variables).err();
            let error = error.unwrap_or_else(|| panic!("{url} connects"));
            assert!(error.hint().starts_with("set "), "{}", error.hint());
            assert!(
                !format!("{error} {error:?}").contains("hunter2"),
                "{error:?}"
            );
        }
    }
}
