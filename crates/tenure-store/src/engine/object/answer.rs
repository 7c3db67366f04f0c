//! Answers as they come from the wire: the service's name for an error, the one answer inside a batch
//! of one, and listings without the names that `object_store` cannot hold.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use object_store::client::{HttpError, HttpErrorKind, HttpResponse};

use super::http::{Answer, Kind};

/// The longest name of an error that is used; the services' own are shorter.
const CODE_BYTES_MAX: usize = 64;

/// Reads what an answer means, and returns it for `object_store` to read.
pub(super) async fn read(
    response: HttpResponse,
    kind: Kind,
) -> Result<(Answer, HttpResponse), HttpError> {
    let status = response.status();
    let is_error = status.is_client_error() || status.is_server_error();
    let is_looked_into = matches!(kind, Kind::Batch | Kind::List);
    if !is_error && !is_looked_into {
        let answer = Answer::new(status, response.headers(), &[]);
        return Ok((answer, response));
    }
    let (parts, body) = response.into_parts();
    let body = match body.bytes().await {
        // The status of an error is enough without the body.
        Err(_) if is_error => Bytes::new(),
        body => body?,
    };
    let answer = match kind {
        // A batch is accepted as a whole; the outcome of its one request is inside.
        Kind::Batch if !is_error => inner(&body),
        _ => None,
    };
    let answer = answer.unwrap_or_else(|| Answer::new(status, &parts.headers, &body));
    let body = match kind {
        Kind::List if !is_error => listing(body)?,
        _ => body,
    };
    Ok((answer, HttpResponse::from_parts(parts, body.into())))
}

/// The service's name for an error: Azure's header, or the first `<Code>` of the body. It ends up in
/// messages, so it may only be one plain word.
pub(super) fn code(headers: &HeaderMap, body: &[u8]) -> Option<String> {
    let header = headers.get("x-ms-error-code");
    let code = match header {
        Some(code) => code.to_str().ok()?,
        None => between(std::str::from_utf8(body).ok()?, "<Code>", "</Code>")?,
    };
    is_word(code).then(|| code.to_owned())
}

fn is_word(code: &str) -> bool {
    (1..=CODE_BYTES_MAX).contains(&code.len())
        && code.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(start)?;
    Some(rest.split_once(end)?.0)
}

/// The answer inside a batch of one: a status line and headers within a multipart body.
fn inner(body: &[u8]) -> Option<Answer> {
    let text = std::str::from_utf8(body).ok()?;
    let (_, rest) = text.split_once("HTTP/1.1 ")?;
    let status = StatusCode::from_bytes(rest.get(..3)?.as_bytes()).ok()?;
    let code = rest.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("x-ms-error-code")
            .then(|| value.trim())
    });
    Some(Answer {
        status,
        code: code.filter(|code| is_word(code)).map(str::to_owned),
        age: None,
        walks_folders: false,
    })
}

/// Returns a listing that can be relied on. `object_store` reads any XML as an empty listing, even a page of some other
/// server, and takes a page without a token for the last one.
fn listing(body: Bytes) -> Result<Bytes, HttpError> {
    let invalid = |why| HttpError::new(HttpErrorKind::Decode, std::io::Error::other(why));
    let text = std::str::from_utf8(&body).map_err(|_| invalid("the answer is not text"))?;
    if !text.contains("</ListBucketResult>") && !text.contains("</EnumerationResults>") {
        return Err(invalid("the answer is not a listing"));
    }
    let is_truncated = text.contains("<IsTruncated>true</IsTruncated>");
    if is_truncated && !text.contains("<NextContinuationToken>") {
        return Err(invalid("the listing does not say where it continues"));
    }
    let kept = without_odd_names(text);
    Ok(kept.map_or(body, Bytes::from))
}

/// A listing without the entries whose names `object_store` would change (it takes the folder marker `a/` for the
/// object `a`) or would fail the whole listing for (`a//b`); `None` if there are none. They are not keys, but they do
/// occur: the console of S3 makes such markers.
fn without_odd_names(text: &str) -> Option<String> {
    let (entry, name) = if text.contains("<EnumerationResults") {
        (("<Blob>", "</Blob>"), ("<Name>", "</Name>"))
    } else {
        (("<Contents>", "</Contents>"), ("<Key>", "</Key>"))
    };
    let mut kept = String::new();
    let (mut copied, mut at) = (0, 0);
    while let Some(start) = text[at..].find(entry.0).map(|offset| at + offset) {
        let length = text[start..].find(entry.1)?;
        at = start + length + entry.1.len();
        // A name with attributes is one that Azure had to encode.
        if between(&text[start..at], name.0, name.1).is_none_or(is_odd) {
            tracing::debug!("skipped an object whose name is not a valid key");
            kept.push_str(&text[copied..start]);
            copied = at;
        }
    }
    kept.push_str(&text[copied..]);
    (copied > 0).then_some(kept)
}

/// Whether a name, as written in XML, is one that `object_store` cannot hold.
fn is_odd(name: &str) -> bool {
    let mut references = name.split("&#").skip(1).filter_map(|rest| {
        let (number, _) = rest.split_once(';')?;
        match number.strip_prefix(['x', 'X']) {
            Some(hex) => u32::from_str_radix(hex, 16).ok(),
            None => number.parse().ok(),
        }
    });
    name.split('/')
        .any(|segment| matches!(segment, "" | "." | ".."))
        || name.bytes().any(|byte| byte.is_ascii_control())
        || references.any(|character| character < 0x20 || character == 0x7f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_named_by_one_plain_word() {
        let mut headers = HeaderMap::new();
        let body = b"<?xml?><Error><Code>NoSuchKey</Code><Key>k</Key></Error>";
        assert_eq!(code(&headers, body).as_deref(), Some("NoSuchKey"));
        for hostile in [
            &b"<Code>sig=secret&amp;x</Code>"[..],
            b"<Code></Code>",
            b"no",
            b"\xff",
        ] {
            assert_eq!(code(&headers, hostile), None);
        }
        headers.insert("x-ms-error-code", "BlobAlreadyExists".parse().unwrap());
        assert_eq!(code(&headers, b"").as_deref(), Some("BlobAlreadyExists"));
    }

    #[test]
    fn the_answer_inside_a_batch_is_found() {
        let body = "--batch\r\nContent-Type: application/http\r\nContent-ID: 0\r\n\r\n\
            HTTP/1.1 404 The specified blob does not exist.\r\nx-ms-error-code: BlobNotFound\r\n\r\n\
            --batch--\r\n";
        let answer = inner(body.as_bytes()).unwrap();
        assert_eq!(answer.status, StatusCode::NOT_FOUND);
        assert_eq!(answer.code.as_deref(), Some("BlobNotFound"));
        assert!(inner(b"--batch--").is_none());
    }

    fn entries(names: &[&str]) -> Bytes {
        let entries: String = names
            .iter()
            .map(|name| format!("<Contents><Key>{name}</Key><Size>1</Size></Contents>"))
            .collect();
        format!("<ListBucketResult>{entries}</ListBucketResult>").into()
    }

    #[test]
    fn names_that_are_no_keys_are_left_out_of_a_listing() {
        let odd = ["a/", "/a", "a//b", "", "..", "a/./b", "a&#x1;b", "a&#10;b"];
        let fine = ["a", "a/b", "a&amp;b", "a&#43;b", "..a", "ü"];
        let mixed: Vec<&str> = odd.into_iter().zip(fine).flat_map(<[_; 2]>::from).collect();
        assert_eq!(listing(entries(&mixed)).unwrap(), entries(&fine));
        assert_eq!(listing(entries(&odd)).unwrap(), entries(&[]));
        assert_eq!(listing(entries(&fine)).unwrap(), entries(&fine));

        let azure = "<EnumerationResults><Blob><Name>a/</Name></Blob>\
            <Blob><Name Encoded=\"true\">a%01</Name></Blob><Blob><Name>a</Name></Blob>\
            </EnumerationResults>";
        let kept = "<EnumerationResults><Blob><Name>a</Name></Blob></EnumerationResults>";
        assert_eq!(listing(azure.into()).unwrap(), kept);
    }

    #[test]
    fn only_a_whole_listing_is_taken_for_one() {
        let more = "<IsTruncated>true</IsTruncated>";
        let next = "<NextContinuationToken>x</NextContinuationToken>";
        for body in [
            "<html><body>Log in to the network</body></html>".to_owned(),
            "<ListBucketResult><Contents>".to_owned(),
            format!("<ListBucketResult>{more}</ListBucketResult>"),
        ] {
            assert!(listing(body.clone().into()).is_err(), "{body}");
        }
        let body = format!("<ListBucketResult>{more}{next}</ListBucketResult>");
        assert_eq!(listing(body.clone().into()).unwrap(), body);
    }
}

#[cfg(test)]
mod fuzz {
    use super::*;

    #[test]
    fn whatever_a_server_answers_is_read_or_refused() {
        let corpus = [
            "<?xml version=\"1.0\"?><Error><Code>SlowDown</Code><Message>m</Message></Error>",
            "<ListBucketResult><Name>b</Name><Contents><Key>a/b</Key></Contents></ListBucketResult>",
            "--batch_1\r\nContent-Type: application/http\r\n\r\nHTTP/1.1 202 Accepted\r\nx: y\r\n\r\n--batch_1--",
        ];
        tenure_fuzz::Fuzz::new("answers of object stores", corpus).run(|input| {
            let word = code(&HeaderMap::new(), input);
            assert!(word.is_none_or(|word| is_word(&word)));
            let _ = inner(input);
            let _ = listing(Bytes::copy_from_slice(input));
        });
    }
}
