//! The page's files, inside the binary: no folder to install, nothing loaded from elsewhere, no build chain.
//!
//! Files have a strong entity tag made from their content, so a browser that asks again downloads nothing it already
//! has. After an upgrade it gets the new page, whichever node answers.

use std::sync::LazyLock;

use axum::body::Body;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use ring::digest;
use tenure_api::Code;

use crate::problem::Problem;

/// The page loads nothing from elsewhere, runs only our own files, cannot be framed, and sends no referrer.
const POLICY: [(HeaderName, HeaderValue); 4] = [
    (
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
             img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        ),
    ),
    (
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    ),
    (
        header::REFERRER_POLICY,
        HeaderValue::from_static("no-referrer"),
    ),
    (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
];

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

struct Asset {
    name: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
}

macro_rules! assets {
    ($($name:literal: $kind:expr,)*) => {
        [$(Asset { name: $name, kind: $kind, bytes: include_bytes!(concat!("assets/", $name)) }),*]
    };
}

static ASSETS: [Asset; 32] = assets! {
    "index.html": HTML,
    "icon.svg": PICTURE,
    "style.css": STYLE,
    "theme.js": SCRIPT,
    "main.js": SCRIPT,
    "api.js": SCRIPT,
    "dialogs.js": SCRIPT,
    "dom.js": SCRIPT,
    "format.js": SCRIPT,
    "glance.js": SCRIPT,
    "live.js": SCRIPT,
    "parts.js": SCRIPT,
    "plot.js": SCRIPT,
    "select.js": SCRIPT,
    "series.js": SCRIPT,
    "stream.js": SCRIPT,
    "tabs.js": SCRIPT,
    "timeline.js": SCRIPT,
    "views/activity.js": SCRIPT,
    "views/cluster.js": SCRIPT,
    "views/elections.js": SCRIPT,
    "views/job.js": SCRIPT,
    "views/jobs.js": SCRIPT,
    "views/outboxes.js": SCRIPT,
    "views/overview.js": SCRIPT,
    "views/queues.js": SCRIPT,
    "views/raw.js": SCRIPT,
    "views/schedules.js": SCRIPT,
    "views/storage.js": SCRIPT,
    "views/welcome.js": SCRIPT,
    "views/workers.js": SCRIPT,
    "worker.js": SCRIPT,
};

/// A tag for each file, in their order.
static TAGS: LazyLock<Vec<HeaderValue>> =
    LazyLock::new(|| ASSETS.iter().map(|asset| tag(asset.bytes)).collect());

fn tag(bytes: &[u8]) -> HeaderValue {
    let digest = digest::digest(&digest::SHA256, bytes);
    let hex: String = digest.as_ref()[..12]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    HeaderValue::try_from(format!("\"{hex}\"")).expect("hexadecimal digits in quotes")
}

/// The page.
pub(super) async fn page(headers: HeaderMap) -> Response {
    serve(0, &headers)
}

/// One of its files.
pub(super) async fn file(Path(name): Path<String>, headers: HeaderMap) -> Response {
    match ASSETS.iter().position(|asset| asset.name == name) {
        Some(place) => serve(place, &headers),
        None => Problem::new(Code::NotFound, "there is no such file").into_response(),
    }
}

fn serve(place: usize, headers: &HeaderMap) -> Response {
    let (asset, tag) = (&ASSETS[place], &TAGS[place]);
    let known = headers.get_all(header::IF_NONE_MATCH).iter().any(|known| {
        let known = known.as_bytes();
        known
            .split(|byte| *byte == b',')
            .map(<[u8]>::trim_ascii)
            .any(|each| each == tag.as_bytes() || each.strip_prefix(b"W/") == Some(tag.as_bytes()))
    });
    let kind = HeaderValue::from_static(asset.kind);
    let own = [(header::ETAG, tag.clone()), (header::CONTENT_TYPE, kind)];
    if known {
        return (StatusCode::NOT_MODIFIED, POLICY, own).into_response();
    }
    (POLICY, own, Body::from(asset.bytes)).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    use super::*;

    fn text(asset: &Asset) -> &'static str {
        std::str::from_utf8(asset.bytes).unwrap()
    }

    fn on_disk(folder: &Path, names: &mut BTreeSet<String>, root: &Path) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                on_disk(&path, names, root);
            } else {
                let name = path.strip_prefix(root).unwrap();
                names.insert(name.to_str().unwrap().to_owned());
            }
        }
    }

    #[test]
    fn every_file_of_the_page_is_served() {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/dashboard/assets");
        let mut names = BTreeSet::new();
        on_disk(&root, &mut names, &root);
        let served: BTreeSet<_> = ASSETS.iter().map(|asset| asset.name.to_owned()).collect();
        assert_eq!(served, names);
    }

    #[test]
    fn every_module_is_fetched_with_the_page_and_not_one_after_the_other() {
        let page = text(&ASSETS[0]);
        // The worker is fetched once for all tabs.
        let scripts = ASSETS.iter().filter(|asset| asset.name.ends_with(".js"));
        for asset in scripts.filter(|asset| asset.name != "worker.js") {
            assert!(
                page.contains(&format!("assets/{}\"", asset.name)),
                "{}",
                asset.name
            );
        }
    }

    #[test]
    fn no_file_makes_markup_or_code_of_text_or_asks_anyone_else() {
        for asset in &ASSETS {
            let text = text(asset).replace("http://www.w3.org/2000/svg", "");
            for forbidden in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                "srcdoc",
                "http://",
                "https://",
                "style=\"",
                "onclick=\"",
                "tenure.token",
                "document.cookie",
            ] {
                assert!(!text.contains(forbidden), "{}: {forbidden}", asset.name);
            }
        }
    }

    #[tokio::test]
    async fn a_file_that_the_browser_has_is_not_sent_again() {
        let first = page(HeaderMap::new()).await;
        assert_eq!(first.status(), StatusCode::OK);
        let tag = first.headers()[header::ETAG].clone();
        let again = page(HeaderMap::from_iter([(header::IF_NONE_MATCH, tag)])).await;
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        assert!(
            again
                .headers()
                .contains_key(header::CONTENT_SECURITY_POLICY)
        );
        let other = HeaderValue::from_static("\"other\"");
        let other = page(HeaderMap::from_iter([(header::IF_NONE_MATCH, other)])).await;
        assert_eq!(other.status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn only_the_files_of_the_page_are_served() {
        for name in ["../assets.rs", "nothing.js", ""] {
            let answer = file(Path(name.to_owned()), HeaderMap::new()).await;
            assert_eq!(answer.status(), StatusCode::NOT_FOUND, "{name}");
        }
    }
}
