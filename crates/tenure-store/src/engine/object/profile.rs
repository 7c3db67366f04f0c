//! Profiles in `~/.aws`, read as the AWS command line does: keys, region and endpoint of one profile, used after what
//! the environment says. `object_store` reads variables only.
//!
//! Profiles that need another service first (roles, single sign-on, programs) are not supported. If one was asked for
//! by name, opening is refused. If it is the default profile it is skipped, since the instance's role may be meant.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::Error;

/// Larger than any such file.
const BYTES_MAX: u64 = 1024 * 1024;

/// Settings of profiles that do not work with keys alone.
const UNSUPPORTED: [&str; 5] = [
    "role_arn",
    "sso_session",
    "sso_start_url",
    "credential_process",
    "credential_source",
];

type Variables = Vec<(String, String)>;
type Profile = BTreeMap<String, String>;

/// The variables, and after them what the profile adds.
pub(super) fn add(mut variables: Variables) -> Result<Variables, Error> {
    let value = |names: &[&str]| {
        let mut found = variables.iter();
        let found = found.find(|(name, _)| names.contains(&name.as_str()));
        found.map(|(_, value)| value.clone())
    };
    let home = value(&["HOME"]).map(|home| Path::new(&home).join(".aws"));
    let file = |variable: &str, name: &str| {
        let named = value(&[variable]).map(PathBuf::from);
        named.or_else(|| Some(home.as_ref()?.join(name)))
    };
    let credentials = file("AWS_SHARED_CREDENTIALS_FILE", "credentials");
    let config = file("AWS_CONFIG_FILE", "config");
    let asked_for = value(&["AWS_PROFILE"]);
    let name = asked_for.as_deref().unwrap_or("default");
    let section = match name {
        "default" => "default".to_owned(),
        name => format!("profile {name}"),
    };
    let mut profile = read(config.as_deref(), &section)?;
    let in_credentials = read(credentials.as_deref(), name)?;
    if profile.is_none() && in_credentials.is_none() {
        return match asked_for {
            None => Ok(variables),
            Some(name) => Err(Error::invalid(
                format!("there is no profile {name:?}, which AWS_PROFILE names"),
                "check ~/.aws/credentials and ~/.aws/config, or unset AWS_PROFILE",
            )),
        };
    }
    // As with the command line, keys in the file of credentials take precedence.
    let mut profile = profile.take().unwrap_or_default();
    profile.extend(in_credentials.unwrap_or_default());

    let has_region = value(&["AWS_REGION", "AWS_DEFAULT_REGION"]).is_some();
    let has_endpoint = value(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]).is_some();
    // The command line asks for a web identity before it looks at keys in files.
    let has_credentials = value(&["AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"]).is_some();
    let mut added = Variables::new();
    let mut take = |key: &str, variable: &str| match profile.get(key) {
        Some(value) => {
            added.push((variable.to_owned(), value.clone()));
            true
        }
        None => false,
    };
    if !has_region {
        take("region", "AWS_REGION");
    }
    if !has_endpoint {
        take("endpoint_url", "AWS_ENDPOINT_URL");
    }
    if !has_credentials {
        let unsupported = UNSUPPORTED.iter().find(|key| profile.contains_key(**key));
        if let Some(key) = unsupported {
            if asked_for.is_some() {
                return Err(Error::invalid(
                    format!("the profile {name:?} has {key}, which is not supported"),
                    format!(
                        "run eval \"$(aws configure export-credentials --profile {name} --format env)\" first"
                    ),
                ));
            }
        } else {
            let has_id = take("aws_access_key_id", "AWS_ACCESS_KEY_ID");
            let has_secret = take("aws_secret_access_key", "AWS_SECRET_ACCESS_KEY");
            take("aws_session_token", "AWS_SESSION_TOKEN");
            if has_id != has_secret {
                return Err(Error::invalid(
                    format!("the profile {name:?} has only one half of a key"),
                    "set both aws_access_key_id and aws_secret_access_key in ~/.aws/credentials",
                ));
            }
        }
    }
    variables.append(&mut added);
    Ok(variables)
}

/// A section of a file; none if there is no such file or section.
fn read(path: Option<&Path>, section: &str) -> Result<Option<Profile>, Error> {
    let Some(path) = path else {
        return Ok(None);
    };
    match text(path) {
        Ok(text) => Ok(parse(&text, section)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::invalid(
            format!("cannot read {}: {error}", path.display()),
            "give the user of this process access to it, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        )),
    }
}

fn text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path)?;
    file.take(BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn parse(text: &str, section: &str) -> Option<Profile> {
    let mut found: Option<Profile> = None;
    let mut is_in_it = false;
    for line in text.lines() {
        let is_nested = line.starts_with([' ', '\t']);
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[') {
            let name = name.split(']').next().unwrap_or_default();
            let words: Vec<&str> = name.split_whitespace().collect();
            is_in_it = words.join(" ") == section;
            if is_in_it {
                found.get_or_insert_default();
            }
            continue;
        }
        // An indented line belongs to a setting such as `s3 =`.
        if let (true, false, Some((key, value))) = (is_in_it, is_nested, line.split_once('=')) {
            let (key, value) = (key.trim().to_ascii_lowercase(), value.trim().to_owned());
            if !value.is_empty() {
                found.get_or_insert_default().insert(key, value);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREDENTIALS: &str = "# keys\n[default]\naws_access_key_id = DEFAULT\naws_secret_access_key = hunter1\n\n\
        [work]\naws_access_key_id=WORK\nAWS_SECRET_ACCESS_KEY= hunter2\naws_session_token =token\n[half]\naws_access_key_id = H\n";
    const CONFIG: &str = "[default]\nregion = eu-central-1\ns3 =\n  region = nested\n[profile work]\n\
        region = us-west-2\nendpoint_url = https://minio.example\n[profile sso]\nsso_session = corp\nregion = x\n";

    /// What is added for these variables, with a home that has both files.
    fn added(given: &[(&str, &str)]) -> Result<Variables, Error> {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join(".aws");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("credentials"), CREDENTIALS).unwrap();
        std::fs::write(folder.join("config"), CONFIG).unwrap();
        let home = ("HOME".to_owned(), home.path().to_str().unwrap().to_owned());
        let given = given
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let given: Variables = std::iter::once(home).chain(given).collect();
        let all = add(given.clone())?;
        assert_eq!(all[..given.len()], given);
        Ok(all[given.len()..].to_vec())
    }

    fn pairs(pairs: &[(&str, &str)]) -> Variables {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn a_profile_adds_what_the_environment_does_not_say() {
        let default = [
            ("AWS_REGION", "eu-central-1"),
            ("AWS_ACCESS_KEY_ID", "DEFAULT"),
            ("AWS_SECRET_ACCESS_KEY", "hunter1"),
        ];
        assert_eq!(added(&[]).unwrap(), pairs(&default));
        let work = [
            ("AWS_REGION", "us-west-2"),
            ("AWS_ENDPOINT_URL", "https://minio.example"),
            ("AWS_ACCESS_KEY_ID", "WORK"),
            ("AWS_SECRET_ACCESS_KEY", "hunter2"),
            ("AWS_SESSION_TOKEN", "token"),
        ];
        assert_eq!(added(&[("AWS_PROFILE", "work")]).unwrap(), pairs(&work));
        let keys = [("AWS_PROFILE", "work"), ("AWS_ACCESS_KEY_ID", "MINE")];
        assert_eq!(added(&keys).unwrap(), pairs(&work[..2]));
        let all = [
            ("AWS_DEFAULT_REGION", "here"),
            ("AWS_WEB_IDENTITY_TOKEN_FILE", "/token"),
        ];
        assert_eq!(added(&all).unwrap(), []);
        let elsewhere = [
            ("AWS_SHARED_CREDENTIALS_FILE", "/nowhere"),
            ("AWS_CONFIG_FILE", "/nowhere"),
        ];
        assert_eq!(added(&elsewhere).unwrap(), []);
    }

    #[test]
    fn a_profile_that_cannot_be_used_is_refused_with_what_to_do() {
        for (name, what, hint) in [
            ("typo", "there is no profile \"typo\"", "unset AWS_PROFILE"),
            (
                "sso",
                "has sso_session, which is not supported",
                "export-credentials --profile sso",
            ),
            ("half", "only one half of a key", "set both"),
        ] {
            let error = added(&[("AWS_PROFILE", name)]).unwrap_err();
            assert!(error.to_string().contains(what), "{name}: {error}");
            assert!(error.hint().contains(hint), "{name}: {}", error.hint());
            assert!(!format!("{error:?}").contains("hunter"), "{error:?}");
        }
        let keys = [("AWS_PROFILE", "sso"), ("AWS_ACCESS_KEY_ID", "MINE")];
        assert_eq!(added(&keys).unwrap(), pairs(&[("AWS_REGION", "x")]));
    }
}
