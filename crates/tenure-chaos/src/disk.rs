//! A small disk that can be full or read-only: a tmpfs. Needs to be root; without it, a plain folder that
//! always works.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// More than a run writes, and little enough to be filled at once.
const SIZE: &str = "size=192m,mode=700";

/// Gone when it is dropped, with everything on it.
#[derive(Debug)]
pub struct Disk {
    folder: PathBuf,
    is_mounted: bool,
}

impl Disk {
    /// A disk at this folder, which is there and empty.
    #[must_use]
    pub fn new(folder: PathBuf) -> Self {
        let is_mounted = mount(&folder);
        Self { folder, is_mounted }
    }

    /// Whether it can be broken.
    #[must_use]
    pub fn is_breakable(&self) -> bool {
        self.is_mounted
    }

    /// Where the brokers' data belongs.
    #[must_use]
    pub fn store(&self) -> PathBuf {
        self.folder.join("store")
    }

    /// Takes all space that is left.
    pub fn fill(&self) -> Result<()> {
        let mut file = File::create(self.filler())?;
        // Down to the last page: large pieces first, then small ones.
        for bytes in [1 << 20, 4096] {
            let piece = vec![0; bytes];
            loop {
                match file.write_all(&piece) {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => return Err(error).context("filling the disk"),
                }
            }
        }
        Ok(())
    }

    /// Gives the space back.
    pub fn free(&self) -> Result<()> {
        fs::remove_file(self.filler()).context("freeing the disk")
    }

    /// Lets nobody make, rename or remove a file, as if the rights were missing; root has all rights, so
    /// modes would not do. Files that are open can still be written, as with rights.
    pub fn make_read_only(&self) -> Result<()> {
        self.attribute("+i").context("making the folder read-only")
    }

    /// Lets everybody write again.
    pub fn make_writable(&self) -> Result<()> {
        self.attribute("-i").context("making the folder writable")
    }

    fn attribute(&self, change: &str) -> Result<()> {
        let mut folders = vec![self.store()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder)? {
                let entry = entry?;
                // A file may be gone by now; a folder never is.
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    folders.push(entry.path());
                }
            }
            let status = quiet("chattr").arg(change).arg(&folder).status()?;
            if !status.success() {
                bail!("chattr {change} ended with {status}");
            }
        }
        Ok(())
    }

    fn filler(&self) -> PathBuf {
        self.folder.join("filler")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_mounted {
            // Lazily: a broker that was just killed may still have a file open.
            let _ = quiet("umount").arg("-l").arg(&self.folder).status();
        }
    }
}

fn mount(folder: &Path) -> bool {
    let mut command = quiet("mount");
    command.args(["-t", "tmpfs", "-o", SIZE, "tmpfs"]);
    let status = command.arg(folder).status();
    status.is_ok_and(|status| status.success())
}

fn quiet(program: &str) -> Command {
    let mut command = Command::new(program);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}
