//! The protocols, as far as the work needs them.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::spec::{Error, Spec};

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Tenure,
    Beanstalkd,
    Nats,
}

/// A job that is being worked on.
pub(crate) struct Held {
    /// What ends it: the id at beanstalkd, the subject to acknowledge to at NATS, the end as JSON at Tenure.
    end: String,
    pub(crate) made_at: u64,
}

pub(crate) struct Connection {
    kind: Kind,
    stream: BufReader<TcpStream>,
    /// Tells connections apart: the worker's name, the inbox.
    number: u64,
    /// How many batches were sent through it.
    batches: u64,
    out: Vec<u8>,
    line: Vec<u8>,
    body: Vec<u8>,
}

static NUMBERS: AtomicU64 = AtomicU64::new(0);

impl Kind {
    pub(crate) fn named(name: &str) -> Result<Self, Error> {
        match name {
            "tenure" => Ok(Self::Tenure),
            "beanstalkd" => Ok(Self::Beanstalkd),
            "nats" => Ok(Self::Nats),
            other => Err(format!("there is no protocol {other}").into()),
        }
    }

    /// How many connections fill a queue, and how many jobs each sends at once: fewer where each job is a write.
    pub(crate) const fn preloaders(self) -> (u64, u64) {
        match self {
            Self::Tenure => (4, 1000),
            Self::Nats => (4, 500),
            Self::Beanstalkd => (16, 10),
        }
    }

    /// Makes what has to be there before: a stream and its consumer, at NATS.
    pub(crate) async fn prepare(self, spec: &Spec) -> Result<(), Error> {
        if self != Self::Nats {
            return Ok(());
        }
        let (mut connection, queue) = (self.connect(spec).await?, spec.text("queue"));
        let stream = json!({
            "name": queue, "subjects": [format!("{queue}.>")], "retention": "workqueue", "storage": "file",
            "num_replicas": 1, "discard": "new", "duplicate_window": 0, "allow_atomic": true,
        });
        let subject = format!("$JS.API.STREAM.CREATE.{queue}");
        connection.asked(&subject, &stream).await?;
        let consumer = json!({"stream_name": queue, "config": {
            "durable_name": "workers", "ack_policy": "explicit", "max_ack_pending": 100_000, "ack_wait": 30_000_000_000_u64,
            "max_waiting": 1024,
        }});
        let subject = format!("$JS.API.CONSUMER.DURABLE.CREATE.{queue}.workers");
        connection.asked(&subject, &consumer).await
    }

    pub(crate) async fn connect(self, spec: &Spec) -> Result<Connection, Error> {
        let stream = TcpStream::connect(spec.text("url")).await?;
        stream.set_nodelay(true)?;
        let mut connection = Connection {
            kind: self,
            stream: BufReader::with_capacity(64 * 1024, stream),
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            batches: 0,
            out: Vec::new(),
            line: Vec::new(),
            body: Vec::new(),
        };
        let queue = spec.text("queue");
        match self {
            Self::Tenure => {}
            Self::Beanstalkd => {
                connection.out.extend(format!("use {queue}\r\n").bytes());
                connection.expect("USING").await?;
                connection.out.extend(format!("watch {queue}\r\n").bytes());
                connection.expect("WATCHING").await?;
            }
            Self::Nats => {
                connection.line().await?;
                let hello = "CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true}\r\n";
                let number = connection.number;
                let subscribe = format!("{hello}SUB _INBOX.{number} 1\r\nPING\r\n");
                connection.out.extend(subscribe.bytes());
                connection.flush().await?;
                connection.expect("PONG").await?;
            }
        }
        Ok(connection)
    }
}

impl Connection {
    async fn flush(&mut self) -> Result<(), Error> {
        if !self.out.is_empty() {
            self.stream.get_mut().write_all(&self.out).await?;
            self.out.clear();
        }
        Ok(())
    }

    /// Reads a line, into `self.line`, without its end.
    async fn line(&mut self) -> Result<(), Error> {
        self.line.clear();
        if self.stream.read_until(b'\n', &mut self.line).await? == 0 {
            return Err("the connection was closed".into());
        }
        while matches!(self.line.last(), Some(b'\r' | b'\n')) {
            self.line.pop();
        }
        Ok(())
    }

    /// Sends what is to be sent, and reads a line that must begin with `wanted`.
    async fn expect(&mut self, wanted: &str) -> Result<(), Error> {
        self.flush().await?;
        self.line().await?;
        if self.line.starts_with(wanted.as_bytes()) {
            return Ok(());
        }
        let got = String::from_utf8_lossy(&self.line);
        Err(format!("got {got:?} where {wanted} was expected").into())
    }

    async fn bytes(&mut self, count: usize) -> Result<(), Error> {
        self.body.resize(count, 0);
        self.stream.read_exact(&mut self.body).await?;
        Ok(())
    }

    fn word(&self, number: usize) -> &str {
        let text = std::str::from_utf8(&self.line).unwrap_or_default();
        text.split(' ').nth(number).unwrap_or_default()
    }

    /// Submits jobs; when this returns, all of them are acknowledged.
    pub(crate) async fn submit(&mut self, spec: &Spec, payloads: &[String]) -> Result<(), Error> {
        let queue = spec.text("queue");
        match self.kind {
            Kind::Tenure => {
                let mut body = String::new();
                if let [payload] = payloads {
                    body.push_str(&job(queue, payload));
                } else {
                    let jobs: Vec<String> =
                        payloads.iter().map(|payload| job(queue, payload)).collect();
                    body = format!("{{\"jobs\":[{}]}}", jobs.join(","));
                }
                self.post("/v1/jobs", &body).await?;
                if occurrences(&self.body, b"\"created\"") == payloads.len() {
                    return Ok(());
                }
                Err(format!("not created: {}", String::from_utf8_lossy(&self.body)).into())
            }
            // It has no call for several jobs: they are sent one after the other, and then the answers are read.
            Kind::Beanstalkd => {
                for payload in payloads {
                    let head = format!("put 0 0 60 {}\r\n{payload}\r\n", payload.len());
                    self.out.extend(head.bytes());
                }
                for _ in payloads {
                    self.expect("INSERTED").await?;
                }
                Ok(())
            }
            Kind::Nats if payloads.len() > 1 => {
                self.nats_batch(queue, payloads);
                self.nats_stored().await
            }
            Kind::Nats => {
                for payload in payloads {
                    let head = format!(
                        "PUB {queue}.job _INBOX.{} {}\r\n{payload}\r\n",
                        self.number,
                        payload.len()
                    );
                    self.out.extend(head.bytes());
                }
                self.nats_stored().await
            }
        }
    }

    /// One atomic batch: only its last message is answered.
    fn nats_batch(&mut self, queue: &str, payloads: &[String]) {
        self.batches += 1;
        for (index, payload) in payloads.iter().enumerate() {
            let (number, batch) = (self.number, self.batches);
            let is_last = index + 1 == payloads.len();
            let commit = if is_last {
                "Nats-Batch-Commit: 1\r\n"
            } else {
                ""
            };
            let head = format!(
                "NATS/1.0\r\nNats-Batch-Id: {number}-{batch}\r\nNats-Batch-Sequence: {}\r\n{commit}\r\n",
                index + 1
            );
            let inbox = if is_last {
                format!("_INBOX.{number} ")
            } else {
                String::new()
            };
            let sizes = format!("{} {}", head.len(), head.len() + payload.len());
            let words = format!("HPUB {queue}.job {inbox}{sizes}\r\n{head}{payload}\r\n");
            self.out.extend(words.bytes());
        }
    }

    async fn nats_stored(&mut self) -> Result<(), Error> {
        self.flush().await?;
        self.message().await?;
        if occurrences(&self.body, b"\"error\"") == 0 {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&self.body);
        Err(format!("not stored: {said}").into())
    }

    /// Ends the job that is held, and waits up to a second for the next one.
    pub(crate) async fn end_and_take(
        &mut self,
        spec: &Spec,
        held: Option<Held>,
    ) -> Result<Option<Held>, Error> {
        match self.kind {
            Kind::Tenure => self.tenure_round(spec, held).await,
            Kind::Beanstalkd => {
                if let Some(held) = &held {
                    let words = format!("delete {}\r\n", held.end);
                    self.out.extend(words.bytes());
                }
                self.out.extend(b"reserve-with-timeout 1\r\n");
                if held.is_some() {
                    self.expect("DELETED").await?;
                }
                self.flush().await?;
                self.line().await?;
                if self.line.starts_with(b"TIMED_OUT") {
                    return Ok(None);
                }
                let (id, count) = (self.word(1).to_owned(), self.word(2).parse::<usize>()?);
                self.bytes(count + 2).await?;
                let made_at = made_at(&self.body);
                Ok(Some(Held { end: id, made_at }))
            }
            Kind::Nats => self.nats_round(spec, held).await,
        }
    }

    /// One call that ends a job and claims the next, as the worker of Tenure's clients does it. With an end it does not
    /// wait, so a second call does if there was no job.
    async fn tenure_round(
        &mut self,
        spec: &Spec,
        held: Option<Held>,
    ) -> Result<Option<Held>, Error> {
        let claim = format!(
            "\"worker\":\"w{}\",\"queues\":[\"{}\"],\"max\":1",
            self.number,
            spec.text("queue")
        );
        let body = match held {
            Some(held) => format!("{{{claim},\"ends\":{{\"completed\":[{}]}}}}", held.end),
            None => format!("{{{claim},\"wait_ms\":1000}}"),
        };
        self.post("/v1/jobs/claim", &body).await?;
        let answer: Value = serde_json::from_slice(&self.body)?;
        if let Some(end) = answer["ends"]["completed"].get(0)
            && end["status"] != "ok"
        {
            return Err(format!("a job could not be completed: {end}").into());
        }
        let Some(job) = answer["jobs"].get(0) else {
            return Ok(None);
        };
        let end = json!({"id": job["id"], "token": job["token"]}).to_string();
        let made_at = job["payload"]["at"].as_u64().unwrap_or_default();
        Ok(Some(Held { end, made_at }))
    }

    /// Acknowledges (and waits for the answer: then the end is on disk), and asks for one message, in one write.
    async fn nats_round(&mut self, spec: &Spec, held: Option<Held>) -> Result<Option<Held>, Error> {
        let (queue, number) = (spec.text("queue"), self.number);
        let mut wanted = 1;
        if let Some(held) = &held {
            let words = format!("PUB {} _INBOX.{number} 4\r\n+ACK\r\n", held.end);
            self.out.extend(words.bytes());
            wanted += 1;
        }
        let pull = "{\"batch\":1,\"expires\":1000000000}";
        let words = format!(
            "PUB $JS.API.CONSUMER.MSG.NEXT.{queue}.workers _INBOX.{number} {}\r\n{pull}\r\n",
            pull.len()
        );
        self.out.extend(words.bytes());
        self.flush().await?;
        let mut next = None;
        // The two answers come in any order; that of the acknowledgement has no reply subject and no status.
        while wanted > 0 {
            let (reply, status) = self.message().await?;
            wanted -= 1;
            if let Some(reply) = reply {
                let made_at = made_at(&self.body);
                next = Some(Held {
                    end: reply,
                    made_at,
                });
            } else if let Some(status) = status
                && !matches!(status.as_str(), "404" | "408")
            {
                return Err(format!("a pull ended with {status}").into());
            }
        }
        Ok(next)
    }

    /// The next message to this connection's inbox: the subject to reply to, and the status in its headers.
    async fn message(&mut self) -> Result<(Option<String>, Option<String>), Error> {
        loop {
            self.line().await?;
            if self.line.starts_with(b"PING") {
                self.out.extend(b"PONG\r\n");
                self.flush().await?;
                continue;
            }
            let text = String::from_utf8_lossy(&self.line).into_owned();
            let words: Vec<&str> = text.split(' ').filter(|word| !word.is_empty()).collect();
            match words.as_slice() {
                ["MSG", _, _, middle @ .., count] => {
                    self.bytes(count.parse::<usize>()? + 2).await?;
                    return Ok((middle.first().map(|&reply| reply.to_owned()), None));
                }
                ["HMSG", _, _, middle @ .., head, count] => {
                    self.bytes(count.parse::<usize>()? + 2).await?;
                    let head = String::from_utf8_lossy(&self.body[..head.parse()?]).into_owned();
                    let status = head
                        .strip_prefix("NATS/1.0 ")
                        .map(|rest| rest.chars().take(3).collect());
                    return Ok((middle.first().map(|&reply| reply.to_owned()), status));
                }
                _ => return Err(format!("got {text:?} where a message was expected").into()),
            }
        }
    }

    /// A call of NATS's own interface. What is there already is no failure.
    async fn asked(&mut self, subject: &str, body: &Value) -> Result<(), Error> {
        let body = body.to_string();
        let words = format!(
            "PUB {subject} _INBOX.{} {}\r\n{body}\r\n",
            self.number,
            body.len()
        );
        self.out.extend(words.bytes());
        self.flush().await?;
        self.message().await?;
        let answer: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        match answer["error"]["description"].as_str() {
            None => Ok(()),
            Some(said) if said.contains("already") => Ok(()),
            Some(said) => Err(format!("{subject}: {said}").into()),
        }
    }

    /// One HTTP call; its answer is in `self.body`.
    async fn post(&mut self, path: &str, body: &str) -> Result<(), Error> {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        self.out.extend(head.bytes());
        self.out.extend(body.bytes());
        self.flush().await?;
        self.line().await?;
        let is_good = self.word(1).starts_with('2');
        let mut count = 0;
        loop {
            self.line().await?;
            if self.line.is_empty() {
                break;
            }
            const NAME: &[u8] = b"content-length:";
            if self.line.len() > NAME.len() && self.line[..NAME.len()].eq_ignore_ascii_case(NAME) {
                count = std::str::from_utf8(&self.line[NAME.len()..])?
                    .trim()
                    .parse()?;
            }
        }
        self.bytes(count).await?;
        if is_good {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&self.body);
        Err(format!("{path} was refused: {said}").into())
    }
}

fn job(queue: &str, payload: &str) -> String {
    format!("{{\"queue\":\"{queue}\",\"type\":\"bench\",\"payload\":{payload}}}")
}

/// How often `part` is in `text`.
fn occurrences(text: &[u8], part: &[u8]) -> usize {
    text.windows(part.len())
        .filter(|window| *window == part)
        .count()
}

/// When a payload was made, in microseconds.
fn made_at(payload: &[u8]) -> u64 {
    let digits = payload.iter().skip_while(|byte| !byte.is_ascii_digit());
    digits
        .take_while(|byte| byte.is_ascii_digit())
        .fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'))
}
