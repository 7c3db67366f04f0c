//! The three services and their words for the same things.

/// A service that keeps objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Service {
    S3,
    Gcs,
    Azure,
}

impl Service {
    /// As in [`Description::engine`](crate::Description).
    pub(super) fn engine(self) -> &'static str {
        match self {
            Service::S3 => "s3",
            Service::Gcs => "gcs",
            Service::Azure => "azure",
        }
    }

    pub(super) fn scheme(self) -> &'static str {
        match self {
            Service::S3 => "s3",
            Service::Gcs => "gs",
            Service::Azure => "az",
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Service::S3 => "S3",
            Service::Gcs => "Google Cloud Storage",
            Service::Azure => "Azure Blob Storage",
        }
    }

    pub(super) fn container(self) -> &'static str {
        match self {
            Service::S3 | Service::Gcs => "bucket",
            Service::Azure => "container",
        }
    }

    pub(super) fn credentials_hint(self) -> &'static str {
        match self {
            Service::S3 => {
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE for keys in ~/.aws, and \
                 allow s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket on the bucket"
            }
            Service::Gcs => {
                "set GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT to a key file, and give \
                 the account the role Storage Object Admin on the bucket"
            }
            Service::Azure => {
                "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or a SAS in \
                 AZURE_STORAGE_SAS_TOKEN that allows read, write, delete and list"
            }
        }
    }

    /// The parameters that may follow the `?` of a URL.
    pub(super) fn parameters(self) -> &'static [&'static str] {
        match self {
            Service::S3 => &["endpoint", "region", "if_match"],
            Service::Gcs | Service::Azure => &["endpoint"],
        }
    }

    /// Which of the service's own variables names an endpoint, in order of precedence.
    pub(super) fn endpoint_variables(self) -> &'static [&'static str] {
        match self {
            Service::S3 => &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"],
            Service::Gcs => &["GOOGLE_BASE_URL"],
            Service::Azure => &["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"],
        }
    }
}
