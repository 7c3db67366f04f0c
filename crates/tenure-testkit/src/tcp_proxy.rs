//! A proxy for any protocol: it cuts connections, and delays, withholds and loses what two programs send each other.
//!
//! As with TCP, bytes are passed on in order or not at all. Withheld bytes are kept: when the line is good again they
//! arrive late, after everything that happened meanwhile.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

/// The state of the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// Everything passes.
    Good,
    /// Everything passes, this much later, in both directions.
    Slow(Duration),
    /// Nothing passes and nothing is closed. Bytes sent meanwhile arrive when the line is good again.
    Silent,
    /// Connections are closed, and new ones are closed as soon as they are made.
    Cut,
    /// Requests arrive, but the connection is closed instead of an answer.
    LoseAnswers,
    /// Requests do not arrive; the client gets this text as the answer, and the connection is closed.
    AnswerInstead(&'static str),
}

/// A proxy in front of a server. Its connections are closed when it is dropped.
#[derive(Debug)]
pub struct TcpProxy {
    address: SocketAddr,
    line: watch::Sender<Line>,
    accepting: JoinHandle<()>,
}

impl TcpProxy {
    /// Starts a proxy in front of `upstream`, on a free port. Has to be called within a tokio runtime.
    pub async fn start(upstream: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (line, watched) = watch::channel(Line::Good);
        let accepting = tokio::spawn(accept(listener, upstream, watched));
        Ok(Self {
            address,
            line,
            accepting,
        })
    }

    /// The proxy's address, which clients use as the server's.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the state of the line, for existing connections too.
    pub fn set(&self, line: Line) {
        self.line.send_replace(line);
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, upstream: SocketAddr, line: watch::Receiver<Line>) {
    // Dropped with this task, and every connection with it.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((client, _)) = accepted {
                    connections.spawn(serve(client, upstream, line.clone()));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(client: TcpStream, upstream: SocketAddr, line: watch::Receiver<Line>) {
    if *line.borrow() == Line::Cut {
        return;
    }
    let Ok(server) = TcpStream::connect(upstream).await else {
        return;
    };
    // Otherwise small answers would wait for delayed acknowledgements, up to 40 ms.
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let to_client = tokio::sync::Mutex::new(to_client);
    tokio::select! {
        () = requests(from_client, to_server, &to_client, line.clone()) => {}
        () = answers(from_server, &to_client, line) => {}
    }
}

async fn requests(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    to_client: &tokio::sync::Mutex<OwnedWriteHalf>,
    mut line: watch::Receiver<Line>,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Some(length) = read(&mut client, &mut buffer, &mut line).await {
        match passable(&mut line).await {
            Line::Cut => return,
            Line::AnswerInstead(text) => {
                let _ = to_client.lock().await.write_all(text.as_bytes()).await;
                return;
            }
            Line::Slow(delay) => sleep(delay).await,
            Line::Good | Line::Silent | Line::LoseAnswers => {}
        }
        if server.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

async fn answers(
    mut server: OwnedReadHalf,
    to_client: &tokio::sync::Mutex<OwnedWriteHalf>,
    mut line: watch::Receiver<Line>,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Some(length) = read(&mut server, &mut buffer, &mut line).await {
        match passable(&mut line).await {
            Line::Cut | Line::LoseAnswers => return,
            Line::Slow(delay) => sleep(delay).await,
            Line::Good | Line::Silent | Line::AnswerInstead(_) => {}
        }
        let mut client = to_client.lock().await;
        if client.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

/// The next bytes; none if the connection has ended or is cut meanwhile.
async fn read(
    from: &mut OwnedReadHalf,
    buffer: &mut [u8],
    line: &mut watch::Receiver<Line>,
) -> Option<usize> {
    tokio::select! {
        read = from.read(buffer) => read.ok().filter(|&length| length > 0),
        _ = line.wait_for(|line| *line == Line::Cut) => None,
    }
}

/// Waits until the line is not silent.
async fn passable(line: &mut watch::Receiver<Line>) -> Line {
    match line.wait_for(|line| *line != Line::Silent).await {
        Ok(line) => *line,
        // The proxy is gone.
        Err(_) => Line::Cut,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::timeout;

    const SOON: Duration = Duration::from_secs(30);

    /// A server that echoes every byte, and reports how many it got.
    async fn echo() -> (SocketAddr, watch::Receiver<usize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (got, watched) = watch::channel(0);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let got = got.clone();
                tokio::spawn(async move {
                    let mut byte = [0];
                    while stream.read_exact(&mut byte).await.is_ok() {
                        got.send_modify(|count| *count += 1);
                        if stream.write_all(&byte).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        (address, watched)
    }

    async fn exchange(stream: &mut TcpStream) -> io::Result<u8> {
        stream.write_all(b"x").await?;
        let mut byte = [0];
        timeout(SOON, stream.read_exact(&mut byte)).await.unwrap()?;
        Ok(byte[0])
    }

    #[tokio::test]
    async fn a_cut_closes_what_is_open_and_heals() {
        let (server, _) = echo().await;
        let proxy = TcpProxy::start(server).await.unwrap();
        let mut open = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(exchange(&mut open).await.unwrap(), b'x');
        proxy.set(Line::Cut);
        assert!(exchange(&mut open).await.is_err());
        let mut new = TcpStream::connect(proxy.address()).await.unwrap();
        assert!(exchange(&mut new).await.is_err());
        proxy.set(Line::Good);
        let mut new = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(exchange(&mut new).await.unwrap(), b'x');
    }

    #[tokio::test]
    async fn a_silent_line_delivers_late() {
        let (server, got) = echo().await;
        let proxy = TcpProxy::start(server).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        exchange(&mut stream).await.unwrap();
        proxy.set(Line::Silent);
        stream.write_all(b"y").await.unwrap();
        let mut byte = [0];
        let silence = timeout(Duration::from_millis(50), stream.read_exact(&mut byte));
        assert!(silence.await.is_err());
        assert_eq!(*got.borrow(), 1);
        proxy.set(Line::Good);
        timeout(SOON, stream.read_exact(&mut byte))
            .await
            .unwrap()
            .unwrap();
        assert_eq!((byte[0], *got.borrow()), (b'y', 2));
    }

    #[tokio::test]
    async fn a_lost_answer_was_carried_out_and_a_stand_in_was_not() {
        let (server, mut got) = echo().await;
        let proxy = TcpProxy::start(server).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        proxy.set(Line::LoseAnswers);
        assert!(exchange(&mut stream).await.is_err());
        timeout(SOON, got.wait_for(|count| *count == 1))
            .await
            .unwrap()
            .unwrap();
        proxy.set(Line::AnswerInstead("!"));
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(exchange(&mut stream).await.unwrap(), b'!');
        assert_eq!(*got.borrow(), 1);
    }
}
