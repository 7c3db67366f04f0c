//! As much of HTTP/1.1 as the clients under test speak: one request after the other on a connection,
//! bodies with a length.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

/// The largest body that is accepted: more than the largest value of a store.
const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A request, or an answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Message {
    /// `PUT /bucket/key HTTP/1.1`, or `HTTP/1.1 200 OK`.
    pub(crate) first_line: String,
    /// In order, with names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Message {
    /// An answer with a status such as `404 Not Found`.
    pub(crate) fn answer(status: &str) -> Self {
        Self {
            first_line: format!("HTTP/1.1 {status}"),
            ..Self::default()
        }
    }

    pub(crate) fn with_header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn with_body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) fn method(&self) -> &str {
        self.first_line.split(' ').next().unwrap_or_default()
    }

    /// The path and the query of a request.
    pub(crate) fn target(&self) -> (&str, &str) {
        let target = self.first_line.split(' ').nth(1).unwrap_or_default();
        target.split_once('?').unwrap_or((target, ""))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(other, _)| other == name)?;
        Some(value)
    }

    /// Reads the next message; `None` if the other side has closed the connection instead. A message
    /// without a length ends with the connection if `until_closed`, and has no body otherwise.
    pub(crate) async fn read(
        reader: &mut BufReader<TcpStream>,
        until_closed: bool,
    ) -> io::Result<Option<Self>> {
        let mut message = Self::default();
        if read_line(reader, &mut message.first_line).await? == 0 {
            return Ok(None);
        }
        loop {
            let mut line = String::new();
            read_line(reader, &mut line).await?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').ok_or(io::ErrorKind::InvalidData)?;
            let (name, value) = (name.to_ascii_lowercase(), value.trim().to_owned());
            message.headers.push((name, value));
        }
        match message.header("content-length").map(str::parse::<usize>) {
            Some(Ok(length)) if length <= BODY_BYTES_MAX && !until_closed => {
                message.body.resize(length, 0);
                reader.read_exact(&mut message.body).await?;
            }
            Some(Err(_)) => return Err(io::ErrorKind::InvalidData.into()),
            _ if until_closed => {
                reader.read_to_end(&mut message.body).await?;
            }
            Some(Ok(0)) | None => {}
            Some(Ok(_)) => return Err(io::ErrorKind::FileTooLarge.into()),
        }
        Ok(Some(message))
    }

    /// Writes the message as it is; its headers must say how long the body is.
    pub(crate) async fn write(&self, stream: &mut BufReader<TcpStream>) -> io::Result<()> {
        let mut bytes = format!("{}\r\n", self.first_line).into_bytes();
        for (name, value) in &self.headers {
            bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(&self.body);
        stream.write_all(&bytes).await?;
        stream.flush().await
    }
}

/// Reads a line without its end, and returns how many bytes there were with it.
async fn read_line(reader: &mut BufReader<TcpStream>, line: &mut String) -> io::Result<usize> {
    let read = reader.read_line(line).await?;
    line.truncate(line.trim_end().len());
    Ok(read)
}

/// A server that is gone when it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    /// The server lives as long as this does.
    alive: oneshot::Sender<Infallible>,
    serving: JoinHandle<()>,
}

impl Server {
    /// Starts a server that passes every new connection to `serve`.
    pub(crate) async fn start<F>(serve: impl Fn(BufReader<TcpStream>) -> F + Send + 'static) -> Self
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a local port is free");
        let address = listener.local_addr().expect("the listener is bound");
        let (alive, mut dropped) = oneshot::channel();
        let serving = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    _ = &mut dropped => break,
                };
                // Errors of a client's connection are ignored.
                if let Ok((stream, _)) = accepted {
                    let _ = stream.set_nodelay(true);
                    connections.spawn(serve(BufReader::new(stream)));
                }
            }
            drop(listener);
            connections.shutdown().await;
        });
        Self {
            address,
            alive,
            serving,
        }
    }

    /// Closes everything, and returns when it is closed.
    pub(crate) async fn stop(self) {
        drop(self.alive);
        let _ = self.serving.await;
    }
}
