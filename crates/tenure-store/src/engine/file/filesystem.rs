//! What kind of file system a folder is on.

use std::io;
use std::path::Path;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// On a disk or in the memory of this host: locks hold, and files carry the times of this host.
    Local,
    /// Shared with other hosts by a protocol that does not keep locks and renames exact.
    Network(&'static str),
    /// Locks and renames are taken to hold, but a file's time may come from another host.
    Other,
}

/// Asks the kernel.
#[cfg(target_os = "linux")]
pub(super) fn kind_of(folder: &Path) -> io::Result<Kind> {
    // The kernel's numbers are 32 bits wide; their type differs between processors.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let magic = rustix::fs::statfs(folder)?.f_type as u32;
    Ok(classify(magic))
}

/// Elsewhere nothing is known.
#[cfg(not(target_os = "linux"))]
pub(super) fn kind_of(_folder: &Path) -> io::Result<Kind> {
    Ok(Kind::Other)
}

/// By the numbers of `linux/magic.h` and of file systems outside the kernel. FUSE, 9p, Ceph and
/// what is not listed are `Other`: some are as good as local, others are not, and the number does
/// not tell.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
fn classify(magic: u32) -> Kind {
    match magic {
        0x0000_ef53 // ext2, ext3, ext4
        | 0x5846_5342 // xfs
        | 0x9123_683e // btrfs
        | 0x0102_1994 // tmpfs
        | 0x8584_58f6 // ramfs
        | 0x794c_7630 // overlay
        | 0x2fc1_2fc1 // zfs
        | 0xf2f5_2010 // f2fs
        | 0xca45_1a4e // bcachefs
        | 0x3153_464a // jfs
        | 0x5265_4973 // reiserfs
        | 0x0000_3434 // nilfs
        | 0x2405_1905 // ubifs
        => Kind::Local,
        0x0000_6969 => Kind::Network("NFS"),
        0x0000_517b | 0xff53_4d42 | 0xfe53_4d42 => Kind::Network("SMB"),
        0x5346_414f | 0x6b41_4653 => Kind::Network("AFS"),
        0x7375_7245 => Kind::Network("Coda"),
        0x0000_564c => Kind::Network("NCP"),
        _ => Kind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_told_from_local_ones() {
        assert_eq!(classify(0xef53), Kind::Local);
        assert_eq!(classify(0x6969), Kind::Network("NFS"));
        assert_eq!(classify(0xff53_4d42), Kind::Network("SMB"));
        assert_eq!(classify(0x6573_5546), Kind::Other);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_kernel_is_asked() {
        // Neither a disk nor a network: any answer but this one means that the wrong field was read.
        assert_eq!(kind_of(Path::new("/proc")).unwrap(), Kind::Other);
        assert_eq!(kind_of(Path::new("/dev/shm")).unwrap(), Kind::Local);
    }
}
