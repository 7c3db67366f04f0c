//! What a request carries, read and checked: bodies, names in the path, and the query.
//!
//! Whatever is wrong, the answer names the field. A body is parsed once, fast; only when that fails is it
//! parsed again by a slower reader that knows where it is.

use std::borrow::Cow;
use std::fmt::Display;
use std::hash::{DefaultHasher, Hasher as _};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tenure_api::strict::{self, Strict};
use tenure_api::{Claim, ClaimCall, ClaimRequest, Code, Completion, Failure, JobId, Key};
use tokio::time::timeout;

use crate::app::App;
use crate::budget::{Room, counted};
use crate::connections::{Connection, Connections};
use crate::hold::Kept;
use crate::listen::BUFFER_BYTES_MAX;
use crate::problem::Problem;

/// A JSON body.
#[derive(Debug)]
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        parse(&read_json(request, app).await?).map(Self)
    }
}

/// A JSON body in a dialect that has more fields than are known here: those are ignored.
#[derive(Debug)]
pub(crate) struct LooseJson<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for LooseJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        let bytes = read_json(request, app).await?;
        refuse_list(&bytes)?;
        serde_json::from_slice(&bytes)
            .map(Self)
            .map_err(|error| explain::<T>(&bytes, &error))
    }
}

/// A JSON body with a list `claims`, each item of which is read on its own: one that is wrong is answered at its place,
/// and keeps no other from being done.
#[derive(Debug)]
pub(crate) struct Claims<T>(pub(crate) Vec<Result<T, Unread>>);

/// An item that cannot be read.
#[derive(Debug)]
pub(crate) struct Unread {
    /// The job, if that much can be told.
    pub(crate) id: Option<JobId>,
    pub(crate) problem: Problem,
}

impl<T: DeserializeOwned> FromRequest<Arc<App>> for Claims<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        parse_each(&read_json(request, app).await?).map(Self)
    }
}

/// All items at once if nothing is wrong with them, and each by itself otherwise.
fn parse_each<T: DeserializeOwned>(bytes: &[u8]) -> Result<Vec<Result<T, Unread>>, Problem> {
    #[derive(Deserialize)]
    struct List<T> {
        claims: Vec<T>,
    }
    if let Ok(List { claims }) = strict::from_slice::<List<T>>(bytes) {
        return Ok(claims.into_iter().map(Ok).collect());
    }
    let list: List<Box<RawValue>> = parse(bytes)?;
    Ok(items_of("claims", &list.claims))
}

fn items_of<T: DeserializeOwned>(list: &str, items: &[Box<RawValue>]) -> Vec<Result<T, Unread>> {
    let each = items.iter().enumerate();
    let read = each.map(|(place, item)| {
        parse(item.get().as_bytes()).map_err(|problem| Unread {
            id: id_of(item),
            problem: problem.of_item(list, place),
        })
    });
    read.collect()
}

/// A claim, and the ends that come along with it, each of which is read on its own as in [`Claims`].
#[derive(Debug)]
pub(crate) struct ClaimBody {
    pub(crate) request: ClaimRequest,
    pub(crate) ends: Option<EachEnd>,
}

/// Ends that come along with a claim.
#[derive(Debug)]
pub(crate) struct EachEnd {
    pub(crate) completed: Vec<Result<Completion, Unread>>,
    pub(crate) failed: Vec<Result<Failure, Unread>>,
    pub(crate) released: Vec<Result<Claim, Unread>>,
}

impl EachEnd {
    pub(crate) fn len(&self) -> usize {
        self.completed.len() + self.failed.len() + self.released.len()
    }
}

impl FromRequest<Arc<App>> for ClaimBody {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        parse_claim(&read_json(request, app).await?)
    }
}

/// The same before any of them was read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RawEnds {
    completed: Vec<Box<RawValue>>,
    failed: Vec<Box<RawValue>>,
    released: Vec<Box<RawValue>>,
}

impl RawEnds {
    pub(crate) fn is_empty(&self) -> bool {
        self.completed.is_empty() && self.failed.is_empty() && self.released.is_empty()
    }
}

fn parse_claim(bytes: &[u8]) -> Result<ClaimBody, Problem> {
    if let Ok(ClaimCall { request, ends }) = strict::from_slice::<ClaimCall>(bytes) {
        let ends = ends.map(|ends| EachEnd {
            completed: ends.completed.into_iter().map(Ok).collect(),
            failed: ends.failed.into_iter().map(Ok).collect(),
            released: ends.released.into_iter().map(Ok).collect(),
        });
        return Ok(ClaimBody { request, ends });
    }
    let ClaimCall { request, ends } = parse::<ClaimCall<RawEnds>>(bytes)?;
    let ends = ends.map(|ends| EachEnd {
        completed: items_of("ends.completed", &ends.completed),
        failed: items_of("ends.failed", &ends.failed),
        released: items_of("ends.released", &ends.released),
    });
    Ok(ClaimBody { request, ends })
}

/// The job that an item is about, whatever else it says.
fn id_of(item: &RawValue) -> Option<JobId> {
    #[derive(Deserialize)]
    struct Identified {
        id: JobId,
    }
    // A list would be read as the fields of an object, in order.
    let object = item.get().starts_with('{').then_some(item.get())?;
    serde_json::from_str(object)
        .ok()
        .map(|Identified { id }| id)
}

/// A JSON body that may be left out, which is the same as `{}`.
#[derive(Debug)]
pub(crate) struct OptionalJson<T>(pub(crate) T);

impl<T: DeserializeOwned + Default> FromRequest<Arc<App>> for OptionalJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        let is_json = is_json(request.headers());
        let bytes = read(request, app).await?;
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        if !is_json {
            return Err(media_type());
        }
        parse(&bytes).map(Self)
    }
}

/// No body, or an empty object: for calls that say everything in their address.
#[derive(Debug)]
pub(crate) struct NoBody;

impl FromRequest<Arc<App>> for NoBody {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        #[derive(Default, serde::Deserialize)]
        struct Nothing {}
        if request.body().is_end_stream() {
            keep(request.into_parts().0, Bytes::new(), None);
            return Ok(Self);
        }
        OptionalJson::<Nothing>::from_request(request, app)
            .await
            .map(|_| Self)
    }
}

/// A claim: a JSON body without the id of the job, which is in the path.
#[derive(Debug)]
pub(crate) struct Held<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for Held<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let Named(id) = Named::from_request_parts(&mut parts, app).await?;
        let bytes = read_json(Request::from_parts(parts, body), app).await?;
        parse_with_id(&bytes, &id).map(Self)
    }
}

fn parse_with_id<T: DeserializeOwned>(body: &[u8], id: &JobId) -> Result<T, Problem> {
    /// What the body must not have.
    #[derive(Deserialize)]
    struct Own {
        id: Option<IgnoredAny>,
    }
    parse(&with_id(body, id)).map_err(|problem| {
        if problem.document().code == Code::InvalidJson {
            return problem;
        }
        // The mistake may be where the id was put in, and is told as the caller would see it.
        match serde_json::from_slice::<Own>(body) {
            Err(error) if !error.is_data() => Problem::new(Code::InvalidJson, error.to_string()),
            Ok(Own { id: Some(_) }) => {
                Problem::new(Code::UnknownField, "unknown field `id`: it is in the path")
                    .field("id")
            }
            _ => problem,
        }
    })
}

/// An object with this id at its end, so that what stands before it keeps its place. Anything else stays as it is.
fn with_id<'a>(body: &'a [u8], id: &JobId) -> Cow<'a, [u8]> {
    let start = body.trim_ascii_end().strip_suffix(b"}");
    let fields = start.and_then(|start| start.trim_ascii_start().strip_prefix(b"{"));
    let (Some(start), Some(fields)) = (start, fields) else {
        return Cow::Borrowed(body);
    };
    let comma = if fields.trim_ascii().is_empty() {
        ""
    } else {
        ","
    };
    // A name needs no escapes.
    let end = format!(r#"{comma}"id":"{id}"}}"#);
    Cow::Owned([start, end.as_bytes()].concat())
}

/// The one name in the path.
#[derive(Debug)]
pub(crate) struct Named<T>(pub(crate) T);

impl<T, S> FromRequestParts<S> for Named<T>
where
    T: FromStr<Err: Display>,
    S: Send + Sync,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let names = names(parts, state).await?;
        if names.iter().next().is_none() {
            // A name that is also a word of the interface, and has a route of its own.
            let path = parts.uri.path();
            let (_, last) = path.rsplit_once('/').unwrap_or(("", path));
            return parsed("id", last).map(Self);
        }
        name(&names, 0).map(Self)
    }
}

/// The two names in the path.
#[derive(Debug)]
pub(crate) struct NamedTwo<A, B>(pub(crate) A, pub(crate) B);

impl<A, B, S> FromRequestParts<S> for NamedTwo<A, B>
where
    A: FromStr<Err: Display>,
    B: FromStr<Err: Display>,
    S: Send + Sync,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let names = names(parts, state).await?;
        Ok(Self(name(&names, 0)?, name(&names, 1)?))
    }
}

/// The parameters behind the question mark.
#[derive(Debug)]
pub(crate) struct Parameters<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Parameters<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let query = parts.uri.query().unwrap_or_default();
        let pairs = serde_urlencoded::Deserializer::new(form(query));
        serde_path_to_error::deserialize(pairs)
            .map(Self)
            .map_err(|error| {
                let path = error.path().to_string();
                data(&path, &error.into_inner().to_string())
            })
    }
}

fn form(query: &str) -> url::form_urlencoded::Parse<'_> {
    url::form_urlencoded::parse(query.as_bytes())
}

async fn names<S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<RawPathParams, Problem> {
    RawPathParams::from_request_parts(parts, state)
        .await
        .map_err(|error| Problem::new(Code::InvalidField, error.to_string()).field("path"))
}

fn name<T: FromStr<Err: Display>>(names: &RawPathParams, place: usize) -> Result<T, Problem> {
    let (field, text) = names
        .iter()
        .nth(place)
        .ok_or_else(|| Problem::internal("the route has too few names"))?;
    parsed(field, text)
}

fn parsed<T: FromStr<Err: Display>>(field: &str, text: &str) -> Result<T, Problem> {
    text.parse()
        .map_err(|error: T::Err| Problem::new(Code::InvalidField, error.to_string()).field(field))
}

/// The whole body, which is said to be JSON.
async fn read_json(request: Request, app: &App) -> Result<Bytes, Problem> {
    let is_json = is_json(request.headers());
    let bytes = read(request, app).await?;
    is_json.then_some(bytes).ok_or_else(media_type)
}

/// The whole body. The call is kept until it is answered: if this server stops leading before it has done anything, the
/// call is made again where somebody leads.
async fn read(request: Request, app: &App) -> Result<Bytes, Problem> {
    let (parts, body) = request.into_parts();
    let connection = parts.extensions.get::<Arc<Connection>>().cloned();
    let (bytes, room) = read_whole(body, connection, app).await?;
    keep(parts, bytes.clone(), Some(room));
    Ok(bytes)
}

fn keep(parts: Parts, body: Bytes, room: Option<Room>) {
    let connection = parts.extensions.get::<Arc<Connection>>().cloned();
    if let Some(connection) = connection {
        connection.keep(Kept {
            parts,
            body,
            _room: room,
        });
    }
}

/// The whole body, and the room that it takes.
pub(crate) async fn read_whole(
    body: Body,
    connection: Option<Arc<Connection>>,
    app: &App,
) -> Result<(Bytes, Room), Problem> {
    let limits = &app.config.limits;
    let most = limits.body_bytes_max;
    let mut body = body;
    let known = body.size_hint().exact();
    if known.is_some_and(|bytes| bytes > most as u64) {
        hear_out(&mut body).await;
        return Err(too_large(most));
    }
    let mut room = app.bodies.room(connection);
    let collected = collect(&mut body, most, &mut room, &app.connections);
    let collected = timeout(limits.body_timeout, collected).await;
    if matches!(&collected, Ok(Err(problem)) if problem.code() == Code::TooLarge) {
        drop(room);
        hear_out(&mut body).await;
        return Err(too_large(most));
    }
    match collected {
        Ok(Ok(bytes)) => {
            room.settle();
            Ok((bytes, room))
        }
        Ok(Err(problem)) => Err(problem),
        Err(_) => Err(Problem::new(
            Code::Timeout,
            "the body did not arrive in time; nothing was done",
        )
        .status(StatusCode::REQUEST_TIMEOUT)),
    }
}

/// Lets a client send the rest of a body that is refused. Most look at the answer only when they have sent everything, and
/// one that is cut off meanwhile takes the refusal for a fault of the network, and sends it again. Nothing of it is kept.
async fn hear_out(body: &mut Body) {
    let rest = async {
        let mut bytes = 0;
        while let Some(Ok(frame)) = body.frame().await {
            bytes += frame.data_ref().map_or(0, Bytes::len);
            if bytes > UNHEARD_BYTES_MAX {
                break;
            }
        }
    };
    let _ = timeout(UNHEARD_TIMEOUT, rest).await;
}

async fn collect(
    body: &mut Body,
    most: usize,
    room: &mut Room,
    connections: &Connections,
) -> Result<Bytes, Problem> {
    let mut pieces = Pieces::new(body.size_hint().exact());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| {
            Problem::new(Code::InvalidJson, "the body ended early; nothing was done")
        })?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if pieces.bytes + data.len() > most {
            return Err(too_large(most));
        }
        if !room.grow(pieces.growth(&data), connections).await {
            return Err(Problem::overloaded(
                "too many bytes are being received at the same time",
            ));
        }
        pieces.push(data);
    }
    let whole = pieces.into_whole();
    room.set(whole.len());
    Ok(whole)
}

/// How much of a refused body is read.
const UNHEARD_BYTES_MAX: usize = 64 * 1024 * 1024;

/// How long that may take.
const UNHEARD_TIMEOUT: Duration = Duration::from_secs(5);

/// The first piece of a body that arrives in many.
const PIECE_BYTES_MIN: usize = 4 * 1024;

/// The largest. What is not filled yet is at most this.
const PIECE_BYTES_MAX: usize = 64 * 1024;

/// The most that a body of so many bytes takes while it arrives: itself, what is left of the last piece, and the
/// connection's buffer.
pub(crate) fn held_bytes_max(bytes: usize) -> usize {
    let spare = bytes.clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX);
    bytes.saturating_add(spare + buffer_bytes(bytes))
}

/// What a connection has read ahead, and the room for as much again, when so many bytes have arrived. (Measured: 130 to
/// 160 KiB when there were many.)
fn buffer_bytes(bytes: usize) -> usize {
    2 * bytes.min(BUFFER_BYTES_MAX)
}

/// A body as far as it has arrived: in pieces that are full, but for the last. It is put together when there is all of
/// it, in as many bytes as it has. Bytes that grow would take up to twice as many, and leave behind them a trail of
/// smaller ones that the allocator keeps for a while.
#[derive(Debug)]
struct Pieces {
    /// How many bytes there will be, if that was announced.
    known: Option<usize>,
    bytes: usize,
    /// A body in one frame, which most are. It is not copied.
    whole: Bytes,
    pieces: Vec<BytesMut>,
}

impl Pieces {
    fn new(known: Option<u64>) -> Self {
        Self {
            known: known.and_then(|known| usize::try_from(known).ok()),
            bytes: 0,
            whole: Bytes::new(),
            pieces: Vec::new(),
        }
    }

    /// What it takes to have these bytes as well: room for them, and for the connection's buffer, which grows as they
    /// arrive.
    fn growth(&self, data: &Bytes) -> usize {
        if self.is_whole(data) {
            return data.len();
        }
        let pieces = self
            .missing(data.len())
            .map_or(0, |bytes| self.piece(bytes));
        pieces + buffer_bytes(self.bytes + data.len()) - buffer_bytes(self.bytes)
    }

    fn is_whole(&self, data: &Bytes) -> bool {
        self.bytes == 0 && self.known == Some(data.len())
    }

    /// How many of so many bytes the last piece has no room for.
    fn missing(&self, bytes: usize) -> Option<usize> {
        let last = self.pieces.last();
        let left = last.map_or(0, |last| last.capacity() - last.len());
        bytes.checked_sub(left).filter(|&bytes| bytes > 0)
    }

    /// How large the next piece is, if so many bytes go into it.
    fn piece(&self, bytes: usize) -> usize {
        let usual = self.bytes.clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX);
        let left = self
            .known
            .map_or(usize::MAX, |known| known.saturating_sub(self.bytes));
        usual.min(left).max(bytes)
    }

    fn push(&mut self, data: Bytes) {
        if self.is_whole(&data) {
            self.bytes = data.len();
            self.whole = data;
            return;
        }
        let missing = self.missing(data.len()).unwrap_or(0);
        let (fits, rest) = data.split_at(data.len() - missing);
        if let Some(last) = self.pieces.last_mut() {
            last.extend_from_slice(fits);
        }
        if !rest.is_empty() {
            let mut piece = BytesMut::with_capacity(self.piece(rest.len()));
            piece.extend_from_slice(rest);
            self.pieces.push(piece);
        }
        self.bytes += data.len();
    }

    fn into_whole(self) -> Bytes {
        if self.pieces.is_empty() {
            return self.whole;
        }
        let mut whole = BytesMut::with_capacity(self.bytes);
        for piece in self.pieces {
            whole.extend_from_slice(&piece);
        }
        whole.freeze()
    }
}

fn too_large(most: usize) -> Problem {
    Problem::new(
        Code::TooLarge,
        format!("the body has more than {most} bytes; nothing was done"),
    )
    .hint("send fewer jobs at once, or store large data elsewhere and send a reference to it")
}

fn media_type() -> Problem {
    Problem::new(
        Code::UnsupportedMediaType,
        "the body is not declared as JSON",
    )
    .field("content-type")
    .hint("send the header Content-Type: application/json (curl: --json)")
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else {
        return false;
    };
    let Ok(kind) = kind.to_str() else {
        return false;
    };
    let kind = kind.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
        || kind
            .to_ascii_lowercase()
            .strip_prefix("application/")
            .is_some_and(|rest| rest.ends_with("+json"))
}

/// A list would be read as the fields of an object, in order.
fn refuse_list(bytes: &[u8]) -> Result<(), Problem> {
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        return Err(Problem::new(
            Code::InvalidJson,
            "the body is a list, not an object",
        ));
    }
    Ok(())
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    refuse_list(bytes)?;
    strict::from_slice(bytes).map_err(|error| explain::<T>(bytes, &error))
}

/// Parses again to find out where the mistake is.
fn explain<T: DeserializeOwned>(bytes: &[u8], first: &serde_json::Error) -> Problem {
    if bytes.is_empty() {
        return Problem::new(Code::InvalidJson, "the body is empty");
    }
    if std::str::from_utf8(bytes).is_err() {
        return Problem::new(Code::InvalidJson, "the body is not UTF-8");
    }
    // A null in place of one of some words counts as bad syntax to the parser; the sender needs a better message.
    let is_json = || serde_json::from_slice::<IgnoredAny>(bytes).is_ok();
    if !first.is_data() && !is_json() {
        return Problem::new(Code::InvalidJson, first.to_string());
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    match serde_path_to_error::deserialize::<_, T>(Strict::new(&mut reader)) {
        Ok(_) => Problem::new(Code::InvalidJson, first.to_string()),
        Err(error) => {
            let path = error.path().to_string();
            data(&path, &error.into_inner().to_string())
        }
    }
}

/// What the parser expects, without the names that types have in this program.
fn in_plain_words(message: &str) -> String {
    let Some((found, expected)) = message.rsplit_once(", expected ") else {
        return message.to_owned();
    };
    let number = |min: i128, max: u128| format!("a whole number from {min} to {max}");
    let expected = match expected {
        "i8" => number(i8::MIN.into(), 127),
        "u8" => number(0, u8::MAX.into()),
        "u16" => number(0, u16::MAX.into()),
        "u32" => number(0, u32::MAX.into()),
        "u64" | "usize" => number(0, u64::MAX.into()),
        "i64" => number(i64::MIN.into(), i64::MAX as u128),
        other if other.starts_with("struct ") => "an object".to_owned(),
        other if other.starts_with("enum ") => "one of the allowed values".to_owned(),
        other => other.to_owned(),
    };
    format!("{found}, expected {expected}")
}

/// A value that is well formed and wrong.
fn data(path: &str, message: &str) -> Problem {
    let message = message.split(" at line ").next().unwrap_or(message);
    let message = &in_plain_words(message);
    let named = |prefix: &str| {
        let rest = message.strip_prefix(prefix)?;
        rest.split_once('`').map(|(name, _)| name.to_owned())
    };
    let within = |name: &str| match path {
        "." | "?" | "" => name.to_owned(),
        path if path == name || path.ends_with(&format!(".{name}")) => path.to_owned(),
        path => format!("{path}.{name}"),
    };
    if let Some(name) = named("unknown field `") {
        return Problem::new(Code::UnknownField, message).field(within(&name));
    }
    if let Some(name) = named("missing field `").or_else(|| named("duplicate field `")) {
        return Problem::new(Code::InvalidField, message).field(within(&name));
    }
    match path {
        "." | "?" | "" => Problem::new(Code::InvalidJson, message),
        path => Problem::new(Code::InvalidField, format!("{path}: {message}")).field(path),
    }
}

/// Room for an answer of at most so many bytes, taken before it is made: who cannot be given room makes none.
pub(crate) async fn room_for(
    app: &App,
    connection: Option<Arc<Connection>>,
    bytes: usize,
) -> Result<Room, Problem> {
    let mut room = app.answers.room(connection);
    if room.grow(bytes, &app.connections).await {
        Ok(room)
    } else {
        Err(no_room())
    }
}

/// Too many answers are in memory.
pub(crate) fn no_room() -> Problem {
    Problem::overloaded("too many answers are waiting to be read")
}

/// Which connection a request came by; none in tests that use none.
#[derive(Debug)]
pub(crate) struct Via(pub(crate) Option<Arc<Connection>>);

impl<S: Send + Sync> FromRequestParts<S> for Via {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self(parts.extensions.get::<Arc<Connection>>().cloned()))
    }
}

/// By what name a call can be sent again: a header that many interfaces have.
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// What the caller named its call, if it did.
#[derive(Debug)]
pub(crate) struct CallName(pub(crate) Option<Key>);

impl<S: Send + Sync> FromRequestParts<S> for CallName {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let mut sent = parts.headers.get_all(IDEMPOTENCY_KEY).iter();
        let Some(name) = sent.next() else {
            return Ok(Self(None));
        };
        let invalid =
            |detail: String| Problem::new(Code::InvalidField, detail).field("Idempotency-Key");
        if sent.next().is_some() {
            return Err(invalid("there is more than one Idempotency-Key".to_owned()));
        }
        let name = name.to_str().map_err(|error| invalid(error.to_string()))?;
        // With quotes around it, as the standard has it, or without, as most send it.
        let quoted = name
            .strip_prefix('"')
            .and_then(|name| name.strip_suffix('"'));
        let name = Key::new(quoted.unwrap_or(name)).map_err(|error| invalid(error.to_string()))?;
        Ok(Self(Some(name)))
    }
}

/// A JSON answer, serialised once.
pub(crate) fn json(status: StatusCode, answer: &impl Serialize) -> Response {
    match serde_json::to_vec(answer) {
        Ok(bytes) => written(status, bytes),
        Err(error) => unwritable(&error),
    }
}

fn written(status: StatusCode, bytes: Vec<u8>) -> Response {
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}

fn unwritable(error: &serde_json::Error) -> Response {
    tracing::error!(%error, "cannot write an answer as JSON");
    Problem::internal("cannot write the answer").into_response()
}

/// A JSON answer with a tag of its content: who has it already is told so, and is sent nothing.
pub(crate) fn tagged(headers: &HeaderMap, answer: &impl Serialize) -> Response {
    tagged_within(headers, answer, 128, None)
}

/// The same for an answer that may be large: it has about so many bytes, and counts as soon as it is there.
pub(crate) fn tagged_within(
    headers: &HeaderMap,
    answer: &impl Serialize,
    bytes: usize,
    room: Option<Room>,
) -> Response {
    // What grows by doubling takes up to twice its size, for as long as it is read.
    let mut text = Vec::with_capacity(bytes);
    if let Err(error) = serde_json::to_writer(&mut text, answer) {
        return unwritable(&error);
    }
    let bytes = text;
    let room = room.map(|mut room| {
        room.set(bytes.capacity());
        room
    });
    let tag = format!("W/\"{:016x}\"", hash(&bytes));
    let known = headers
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|value| value.trim() == "*" || value.trim() == tag);
    let mut response = if known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        written(StatusCode::OK, bytes)
    };
    let tag = HeaderValue::try_from(tag).expect("digits and quotes");
    response.headers_mut().insert(header::ETAG, tag);
    match room {
        Some(room) if !known => counted(response, room),
        _ => response,
    }
}

/// The same for the same bytes, on every server of one version.
fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// A JSON answer with 200.
pub(crate) fn ok(answer: &impl Serialize) -> Response {
    json(StatusCode::OK, answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_api::{JobsQuery, SubmitRequest};

    #[track_caller]
    fn refused<T: DeserializeOwned + std::fmt::Debug>(body: &str, code: Code, field: Option<&str>) {
        let problem = parse::<T>(body.as_bytes()).unwrap_err();
        assert_eq!(problem.code(), code, "{problem:?}");
        assert_eq!(problem.document().field.as_deref(), field, "{problem:?}");
    }

    #[test]
    fn mistakes_are_told_in_plain_words() {
        #[track_caller]
        fn told<T: DeserializeOwned + std::fmt::Debug>(body: &str, words: &str) {
            let problem = parse::<T>(body.as_bytes()).unwrap_err();
            let detail = &problem.document().detail;
            assert!(detail.contains(words), "{detail}");
        }
        let time = "expected milliseconds since 1970 or an RFC 3339 time";
        told::<SubmitRequest>(r#"{"type":"a","run_at":true}"#, time);
        told::<SubmitRequest>(r#"{"type":"a","run_at":{}}"#, time);
        let small = "expected a whole number from -128 to 127";
        told::<SubmitRequest>(r#"{"type":"a","priority":300}"#, small);
        told::<SubmitRequest>(r#"{"type":"a","priority":"high"}"#, small);
        let whole = "expected a whole number from 0 to 4294967295";
        told::<ClaimRequest>(r#"{"worker":"w","lease_ms":-1}"#, whole);
        let change = r#"{"completed":null}"#;
        told::<tenure_api::SettingsChange>(change, "expected an object");
    }

    #[test]
    fn mistakes_in_a_body_are_named_by_field() {
        use Code::{InvalidField, InvalidJson, UnknownField};
        refused::<SubmitRequest>("", InvalidJson, None);
        refused::<SubmitRequest>("{", InvalidJson, None);
        refused::<SubmitRequest>("[]", InvalidJson, None);
        refused::<SubmitRequest>("{}", InvalidField, Some("type"));
        refused::<tenure_core::queue::ScheduleSpec>(
            r#"{"cron":"* * * * *","job":{"type":"a"},"missed":null}"#,
            InvalidField,
            Some("missed"),
        );
        refused::<SubmitRequest>(r#"{"type":7}"#, InvalidField, Some("type"));
        refused::<SubmitRequest>(r#"{"type":""}"#, InvalidField, Some("type"));
        refused::<SubmitRequest>(r#"{"type":"a","priorty":1}"#, UnknownField, Some("priorty"));
        refused::<SubmitRequest>(
            r#"{"type":"a","priority":1000}"#,
            InvalidField,
            Some("priority"),
        );
        refused::<SubmitRequest>(
            r#"{"jobs":[{"type":"a"},{"type":"a","run_at":"x"}]}"#,
            InvalidField,
            Some("jobs[1].run_at"),
        );
        refused::<SubmitRequest>(
            r#"{"jobs":[{"payload":1}]}"#,
            InvalidField,
            Some("jobs[0].type"),
        );
        refused::<SubmitRequest>(
            r#"{"jobs":[{"type":"a","x":1}]}"#,
            UnknownField,
            Some("jobs[0].x"),
        );
        refused::<ClaimRequest>(r#"{"worker":"w","max":-1}"#, InvalidField, Some("max"));
        refused::<ClaimRequest>(
            r#"{"worker":"w","types":["a","/"]}"#,
            InvalidField,
            Some("types[1]"),
        );
    }

    #[test]
    fn an_end_that_cannot_be_read_leaves_the_claim_and_the_other_ends_alone() {
        let good = r#"{"id":"a","token":"1-1"}"#;
        let bad = r#"{"id":"b","token":"1-1","x":1}"#;
        let body = format!(
            r#"{{"worker":"w","ends":{{"completed":[{good},{bad}],"failed":[{good}],"released":[7]}}}}"#
        );
        let read = parse_claim(body.as_bytes()).unwrap();
        assert_eq!(read.request.worker.as_str(), "w");
        let ends = read.ends.unwrap();
        assert_eq!(ends.len(), 4);
        assert!(ends.completed[0].is_ok() && ends.failed[0].is_ok());
        let unread = ends.completed[1].as_ref().unwrap_err();
        assert_eq!(unread.id.as_ref().map(JobId::as_str), Some("b"));
        let field = |unread: &Unread| unread.problem.document().field.clone();
        assert_eq!(field(unread).as_deref(), Some("ends.completed[1].x"));
        let unread = ends.released[0].as_ref().unwrap_err();
        assert_eq!(unread.id, None);
        assert_eq!(field(unread).as_deref(), Some("ends.released[0]"));
        // What is wrong with the call itself is wrong with all of it.
        use Code::{InvalidField, InvalidJson, UnknownField};
        for (body, code, field) in [
            (
                r#"{"worker":"w","ends":{"done":[]}}"#,
                UnknownField,
                Some("ends.done"),
            ),
            (
                r#"{"worker":"w","ends":{"completed":{}}}"#,
                InvalidField,
                Some("ends.completed"),
            ),
            (r#"{"worker":"w","end":{}}"#, UnknownField, Some("end")),
            (r#"{"ends":{}}"#, InvalidField, Some("worker")),
            ("[]", InvalidJson, None),
        ] {
            let problem = parse_claim(body.as_bytes()).unwrap_err();
            let got = problem.document();
            assert_eq!(
                (got.code, got.field.as_deref()),
                (code, field),
                "{body}: {problem:?}"
            );
        }
    }

    #[test]
    fn a_claim_has_the_id_of_its_address() {
        let id = JobId::new("a:1").unwrap();
        let read = |body: &str| parse_with_id::<Completion>(body.as_bytes(), &id);
        let read = |body: &str| read(body).map_err(|problem| problem.code());
        let token = r#""token":"1f-0a1b2c3d""#;
        for body in [
            format!("{{{token}}}"),
            format!(" {{ {token},\n\"result\":{{}} }} \n"),
        ] {
            assert_eq!(read(&body).unwrap().id, id, "{body}");
        }
        for (body, code) in [
            ("{}".to_owned(), Code::InvalidField),
            (format!(r#"{{{token},"id":"b"}}"#), Code::UnknownField),
            (format!(r#"{{{token},"x":1}}"#), Code::UnknownField),
            (format!("{{{token},}}"), Code::InvalidJson),
            (format!("{{{token}}} }}"), Code::InvalidJson),
            ("[]".to_owned(), Code::InvalidJson),
            ("[[]]".to_owned(), Code::InvalidJson),
            ("}".to_owned(), Code::InvalidJson),
            (String::new(), Code::InvalidJson),
        ] {
            assert_eq!(read(&body), Err(code), "{body}");
        }
    }

    #[test]
    fn bad_utf_8_is_said_to_be_that() {
        let problem = parse::<SubmitRequest>(b"{\"type\":\"\xff\"}").unwrap_err();
        assert_eq!(problem.document().detail, "the body is not UTF-8");
    }

    #[tokio::test]
    async fn mistakes_in_a_query_are_named_by_field() {
        for (query, code, field) in [
            ("stat=dead", Code::UnknownField, "stat"),
            ("state=deaf", Code::InvalidField, "state"),
            ("limit=x", Code::InvalidField, "limit"),
            ("queue=%2F", Code::InvalidField, "queue"),
            ("limit=1&limit=2", Code::InvalidField, "limit"),
        ] {
            let (mut parts, ()) = http::Request::builder()
                .uri(format!("/v1/jobs?{query}"))
                .body(())
                .unwrap()
                .into_parts();
            let problem = Parameters::<JobsQuery>::from_request_parts(&mut parts, &())
                .await
                .unwrap_err();
            assert_eq!(problem.code(), code, "{query}: {problem:?}");
            assert_eq!(
                problem.document().field.as_deref(),
                Some(field),
                "{problem:?}"
            );
        }
    }

    #[tokio::test]
    async fn bodies_in_pieces_are_put_together() {
        let pieces = ["{", "\"a\"", ":1}"].map(|piece| Ok::<_, std::io::Error>(Bytes::from(piece)));
        let body = Body::from_stream(futures_util::stream::iter(pieces));
        let connections = Connections::new(1);
        let budget = crate::budget::Budget::new(10_000);
        let collect = async |body| {
            let mut room = budget.room(None);
            let collected = collect(&mut { body }, 7, &mut room, &connections).await;
            (collected, budget.used())
        };
        let (body, used) = collect(body).await;
        assert_eq!((body.unwrap(), used), (Bytes::from("{\"a\":1}"), 7));
        let pieces = ["1234", "5678"].map(|piece| Ok::<_, std::io::Error>(Bytes::from(piece)));
        let body = Body::from_stream(futures_util::stream::iter(pieces));
        assert_eq!(collect(body).await.0.unwrap_err().code(), Code::TooLarge);
        assert_eq!(budget.used(), 0);
    }

    /// Whatever it arrives in, what is counted is what is held, and that is little more than what has arrived.
    #[test]
    fn what_has_arrived_of_a_body_is_counted_as_it_is_held() {
        const WHOLE: usize = 300_000;
        let sent: Bytes = (0..=250).cycle().take(WHOLE).collect();
        for known in [None, Some(WHOLE as u64)] {
            for size in [1, 999, 4096, 8192, 50_000, 65_536, 200_000, WHOLE] {
                let mut pieces = Pieces::new(known);
                let mut counted = 0;
                let mut rest = sent.clone();
                while !rest.is_empty() {
                    let data = rest.split_to(size.min(rest.len()));
                    counted += pieces.growth(&data);
                    pieces.push(data);
                    let held: usize = pieces.pieces.iter().map(BytesMut::capacity).sum();
                    let held = held + pieces.whole.len();
                    let arrived = pieces.bytes;
                    let about = format!("{known:?} {size}: {arrived}, {held}, {counted}");
                    let buffer = if pieces.whole.is_empty() {
                        buffer_bytes(arrived)
                    } else {
                        0
                    };
                    assert_eq!(counted, held + buffer, "{about}");
                    let spare = arrived.clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX);
                    assert!(held <= arrived + spare, "{about}");
                    assert!(counted <= held_bytes_max(arrived), "{about}");
                }
                assert_eq!(pieces.into_whole(), sent, "{known:?} {size}");
            }
        }
    }
}
