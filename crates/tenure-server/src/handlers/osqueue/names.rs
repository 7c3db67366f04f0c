//! Makes names of osqueue's types and workers, which can be any text.
//!
//! Text that is a valid name is used unchanged. Other text becomes a name that begins with `=`, which names allow and
//! hardly anybody uses: `img/resize` is `=img=2Fresize`. A job without a type has the type `=`.

use std::fmt::Write as _;

use ring::digest;
use tenure_api::{Code, JobType};
use tenure_core::queue::Key;

use crate::problem::Problem;

/// The mark of a name that encodes other text.
const MARK: char = '=';

/// What a type must not begin with: the commands would take it for an option.
const OPTION: char = '-';

/// The queue's name for a job type.
pub(super) fn job_type(text: Option<&str>) -> Result<JobType, Problem> {
    let text = text.unwrap_or_default();
    let name = match JobType::new(text) {
        Ok(name) if !text.starts_with([MARK, OPTION]) => return Ok(name),
        _ => marked(text),
    };
    JobType::new(&name).map_err(|_| {
        let problem = format!("the type has {} bytes as a name, more than 200", name.len());
        Problem::new(Code::InvalidField, problem).field("type")
    })
}

/// The job type as its submitter wrote it; `None` if it had none.
pub(super) fn shown_type(name: &JobType) -> Option<String> {
    let name = name.as_str();
    match name.strip_prefix(MARK) {
        Some("") => None,
        // If it cannot be decoded, the name was not made here, and is shown unchanged.
        Some(rest) => Some(unmarked(rest).unwrap_or_else(|| name.to_owned())),
        None => Some(name.to_owned()),
    }
}

/// The queue's name for a worker.
pub(super) fn worker(text: &str) -> Key {
    Key::new(text).unwrap_or_else(|_| {
        let digest = digest::digest(&digest::SHA256, text.as_bytes());
        let mut name = MARK.to_string();
        for byte in &digest.as_ref()[..16] {
            let _ = write!(name, "{byte:02x}");
        }
        Key::new(name).expect("letters and digits make a key")
    })
}

fn marked(text: &str) -> String {
    let mut name = MARK.to_string();
    for byte in text.bytes() {
        let is_plain = byte.is_ascii_alphanumeric() || b"-_.:@+".contains(&byte);
        if is_plain {
            name.push(char::from(byte));
        } else {
            let _ = write!(name, "{MARK}{byte:02X}");
        }
    }
    name
}

fn unmarked(name: &str) -> Option<String> {
    let mut pieces = name.split(MARK);
    let mut bytes = pieces.next()?.as_bytes().to_vec();
    for piece in pieces {
        let (digits, rest) = piece.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_type_is_a_name_and_is_found_again() {
        for (text, name) in [
            ("email:send", "email:send"),
            ("untyped", "untyped"),
            ("img/resize", "=img=2Fresize"),
            ("two words", "=two=20words"),
            ("Größe", "=Gr=C3=B6=C3=9Fe"),
            (".dot", "=.dot"),
            ("-v", "=-v"),
            ("=2F", "==3D2F"),
            ("=", "==3D"),
        ] {
            let found = job_type(Some(text)).unwrap();
            assert_eq!(found.as_str(), name);
            assert_eq!(shown_type(&found).as_deref(), Some(text));
        }
        let none = job_type(None).unwrap();
        assert_eq!((none.as_str(), shown_type(&none)), ("=", None));
        assert_eq!(job_type(Some("")).unwrap(), none);
        assert!(job_type(Some(&"/".repeat(70))).is_err());
        let foreign = JobType::new("=x=").unwrap();
        assert_eq!(shown_type(&foreign).as_deref(), Some("=x="));
    }

    #[test]
    fn any_worker_is_a_key() {
        assert_eq!(worker("w 1").as_str(), "w 1");
        assert_eq!(worker("").as_str().len(), 33);
        assert_ne!(worker(""), worker(&"x".repeat(201)));
    }
}
