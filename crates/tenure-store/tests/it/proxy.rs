//! A TCP proxy that loses answers. It knows nothing of what it forwards.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};

/// Forwards every connection to one server, for as long as it exists.
pub(crate) struct Proxy {
    address: SocketAddr,
    orders: Arc<Orders>,
}

#[derive(Default)]
struct Orders {
    /// The answer to the request that holds these bytes will be dropped.
    marker: Mutex<Option<Vec<u8>>>,
    /// Counts how often all connections were cut.
    cuts: watch::Sender<u64>,
    lost: Notify,
}

impl Proxy {
    pub(crate) async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let orders = Arc::new(Orders::default());
        let for_task = Arc::downgrade(&orders);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Some(orders) = for_task.upgrade() else {
                    return;
                };
                tokio::spawn(forward(client, server, orders));
            }
        });
        Self { address, orders }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets the next request that holds these bytes through, drops what the server answers, and closes the connection
    /// when that answer comes: by then the server has handled the request.
    pub(crate) fn lose_answer_to(&self, marker: &str) {
        *self.orders.marker.lock().unwrap() = Some(marker.as_bytes().to_vec());
    }

    /// Resolves when the answer was lost.
    pub(crate) async fn lost(&self) {
        self.orders.lost.notified().await;
    }

    /// Closes every connection. New ones are accepted.
    pub(crate) async fn cut(&self) {
        self.orders.cuts.send_modify(|cuts| *cuts += 1);
        // Each connection listens until it is closed. Some are opened again at once, and this does not wait for those.
        for _ in 0..100 {
            if self.orders.cuts.receiver_count() == 0 {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    }
}

async fn forward(client: TcpStream, server: SocketAddr, orders: Arc<Orders>) {
    let mut cuts = orders.cuts.subscribe();
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    let (client_reads, client_writes) = client.into_split();
    let (server_reads, server_writes) = server.into_split();
    let losing = Mutex::new(false);
    tokio::select! {
        _ = requests(client_reads, server_writes, &orders, &losing) => {}
        _ = answers(server_reads, client_writes, &orders, &losing) => {}
        _ = cuts.changed() => {}
    }
}

async fn requests(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    orders: &Orders,
    losing: &Mutex<bool>,
) -> io::Result<()> {
    let mut seen = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = client.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        seen.extend_from_slice(&buffer[..read]);
        {
            let mut marker = orders.marker.lock().unwrap();
            match &*marker {
                // Ignore what passed before the order was given.
                None => seen.clear(),
                Some(wanted) if contains(&seen, wanted) => {
                    *marker = None;
                    *losing.lock().unwrap() = true;
                }
                Some(_) => {}
            }
        }
        // A marker may be split between two reads.
        seen.drain(..seen.len().saturating_sub(1024));
        server.write_all(&buffer[..read]).await?;
    }
}

async fn answers(
    mut server: OwnedReadHalf,
    mut client: OwnedWriteHalf,
    orders: &Orders,
    losing: &Mutex<bool>,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = server.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        if *losing.lock().unwrap() {
            orders.lost.notify_one();
            return Ok(());
        }
        client.write_all(&buffer[..read]).await?;
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}
