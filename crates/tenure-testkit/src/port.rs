//! Ports for servers that are separate programs.
//!
//! A port that was free when it was chosen may be taken before the server listens on it. So it is reserved by a lock,
//! which all tests and `scripts/with-servers` use. It is also below the ports that the kernel gives to outgoing
//! connections, which do not use the lock.

use std::fs::{DirBuilder, File};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// A free port of 127.0.0.1, reserved until this is dropped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _lock: File,
}

impl Port {
    /// Reserves a port.
    ///
    /// # Panics
    ///
    /// If there is none, or the lock files cannot be created.
    #[must_use]
    pub fn hold() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let user = std::fs::metadata("/proc/self").expect("it is this process");
        let folder = std::env::temp_dir().join(format!("tenure-ports-{}", user.uid()));
        let made = DirBuilder::new().mode(0o700).create(&folder);
        assert!(made.is_ok() || folder.is_dir(), "{made:?}");
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        // Starts at a random port, so that few tests try the same one.
        let start = now.map_or(0, |now| now.subsec_nanos()) / 1000;
        for _ in 0..20_000 {
            let next = start.wrapping_add(NEXT.fetch_add(7919, Ordering::Relaxed));
            let number = u16::try_from(10_000 + next % 22_000).expect("it is below 32,000");
            let lock = File::create(folder.join(number.to_string())).expect("locks can be made");
            if lock.try_lock().is_ok() && TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Self {
                    number,
                    _lock: lock,
                };
            }
        }
        panic!("all ports are taken");
    }

    /// The port's number.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Port;

    #[test]
    fn nobody_gets_a_port_that_is_held() {
        let held: Vec<Port> = (0..200).map(|_| Port::hold()).collect();
        let numbers: BTreeSet<u16> = held.iter().map(Port::number).collect();
        assert_eq!(numbers.len(), held.len());
    }
}
