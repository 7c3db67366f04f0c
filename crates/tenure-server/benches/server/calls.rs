//! A client that does as little as possible, so that the server is what is measured.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::JOB;

const CONNECTIONS: usize = 64;

/// Submits one job per call on all connections for the given time, and returns the number of calls.
pub(crate) async fn submit(address: SocketAddr, time: Duration) -> f64 {
    let end = Instant::now() + time;
    let tasks: Vec<_> = (0..CONNECTIONS)
        .map(|_| tokio::spawn(submit_on_one(address, end)))
        .collect();
    let mut calls = 0;
    for task in tasks {
        calls += task.await.unwrap();
    }
    f64::from(calls)
}

/// One connection, one call at a time.
async fn submit_on_one(address: SocketAddr, end: Instant) -> u32 {
    let mut connection = Connection::open(address).await;
    let request = connection.request("/v1/jobs", JOB);
    let mut calls = 0;
    while Instant::now() < end {
        connection.call(&request).await;
        calls += 1;
    }
    calls
}

pub(crate) struct Connection {
    stream: TcpStream,
    address: SocketAddr,
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            stream,
            address,
            buffer: vec![0; 4096],
        }
    }

    pub(crate) fn request(&self, path: &str, body: &str) -> String {
        format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        )
    }

    /// Waits for the answer and returns its length.
    pub(crate) async fn call(&mut self, request: &str) -> usize {
        self.stream.write_all(request.as_bytes()).await.unwrap();
        let mut length = 0;
        // All successful answers end like this; error answers do not.
        while !self.buffer[..length].ends_with(b"}]}") {
            let more = self.stream.read(&mut self.buffer[length..]).await.unwrap();
            length += more;
            let answer = &self.buffer[..length];
            assert!(
                more > 0 && answer.starts_with(b"HTTP/1.1 20"),
                "{}",
                String::from_utf8_lossy(answer)
            );
        }
        length
    }

    /// Reads a page to its end. The connection cannot be used afterwards.
    pub(crate) async fn read(&mut self, path: &str) {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.address
        );
        self.finish(path, request).await;
    }

    /// Sends a PUT and waits for its answer. The connection cannot be used afterwards.
    pub(crate) async fn put(&mut self, path: &str, body: &str) {
        let request = format!(
            "PUT {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        self.finish(path, request).await;
    }

    async fn finish(&mut self, path: &str, request: String) {
        self.stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        self.stream.read_to_end(&mut answer).await.unwrap();
        let head = &answer[..answer.len().min(500)];
        assert!(
            answer.starts_with(b"HTTP/1.1 200"),
            "{path}: {}",
            String::from_utf8_lossy(head)
        );
    }

    /// The body of an answer of that length.
    pub(crate) fn body(&self, length: usize) -> &[u8] {
        let answer = &self.buffer[..length];
        let head = answer.windows(4).position(|end| end == b"\r\n\r\n");
        &answer[head.unwrap() + 4..]
    }
}
