//! A small disk that can be made full or read-only: a tmpfs. This needs root; otherwise it is a plain folder that
//! always works.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// More than a run writes, and small enough to be filled quickly.
const SIZE: &str = "size=192m,mode=700";

/// A disk that is removed with its content when it is dropped.
#[derive(Debug)]
pub struct Disk {
    folder: PathBuf,
    is_mounted: bool,
}

impl Disk {
    /// A disk at this folder, which must exist and be empty.
    #[must_use]
    pub fn new(folder: PathBuf) -> Self {
        let is_mounted = mount(&folder);
        Self { folder, is_mounted }
    }

    /// Whether it can be made full or read-only.
    #[must_use]
    pub fn is_breakable(&self) -> bool {
        self.is_mounted
    }

    /// The folder for the brokers' data.
    #[must_use]
    pub fn store(&self) -> PathBuf {
        self.folder.join("store")
    }

    /// Fills all free space.
    pub fn fill(&self) -> Result<()> {
        let mut file = File::create(self.filler())?;
        // To the last page: large pieces first, then small ones.
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

    /// Prevents creating, renaming and removing files, as if permissions were missing. File modes are not enough,
    /// since root ignores them. Open files can still be written, as they could with missing permissions.
    pub fn make_read_only(&self) -> Result<()> {
        self.attribute("+i").context("making the folder read-only")
    }

    /// Allows writes again.
    pub fn make_writable(&self) -> Result<()> {
        self.attribute("-i").context("making the folder writable")
    }

    fn attribute(&self, change: &str) -> Result<()> {
        let mut folders = vec![self.store()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder)? {
                let entry = entry?;
                // A file may be gone by now; a folder cannot be.
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
            // Lazily, since a broker that was just killed may still have a file open.
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
