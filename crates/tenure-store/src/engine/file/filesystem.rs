//! What kind of file system a folder is on.

use std::io;
use std::path::Path;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// On a disk or in the memory of this host: locks hold.
    Local,
    /// Shared with other hosts by a protocol that does not keep locks and renames exact.
    Network(&'static str),
    /// May be shared with other hosts, whose locks may not exclude ours.
    Shared(&'static str),
    /// One of the kernel's own: it looks like files and stores none.
    Kernel(&'static str),
    /// Not known.
    Other,
}

#[cfg(target_os = "linux")]
pub(super) fn kind_of(folder: &Path) -> io::Result<Kind> {
    // The kernel's numbers are 32 bits wide; their type differs between processors.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let magic = rustix::fs::statfs(folder)?.f_type as u32;
    Ok(classify(magic))
}

/// Other systems: not known.
#[cfg(not(target_os = "linux"))]
pub(super) fn kind_of(_folder: &Path) -> io::Result<Kind> {
    Ok(Kind::Other)
}

/// By the numbers of `linux/magic.h` and of file systems outside the kernel. Some of those that are `Shared` are as
/// good as local ones and some are not, and the number does not tell which.
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
        0x6573_5546 => Kind::Shared("FUSE"),
        0x0102_1997 => Kind::Shared("9p"),
        0x00c3_6400 => Kind::Shared("Ceph"),
        0x0bd0_0bd0 => Kind::Shared("Lustre"),
        0x0116_1970 => Kind::Shared("GFS2"),
        0x7461_636f => Kind::Shared("OCFS2"),
        0x4750_4653 => Kind::Shared("GPFS"),
        0x1982_1971 => Kind::Shared("BeeGFS"),
        0x0000_9fa0 => Kind::Kernel("proc"),
        0x6265_6572 => Kind::Kernel("sysfs"),
        0x0027_e0eb | 0x6367_7270 => Kind::Kernel("cgroup"),
        0x6462_6720 => Kind::Kernel("debugfs"),
        0x0000_1cd1 => Kind::Kernel("devpts"),
        0x786f_4256 => Kind::Shared("VirtualBox's shared folders"),
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
        for magic in [0x6573_5546, 0x0102_1997, 0x00c3_6400, 0x0bd0_0bd0] {
            assert!(matches!(classify(magic), Kind::Shared(_)), "{magic:x}");
        }
        assert_eq!(classify(0x1234), Kind::Other);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_kernel_is_asked() {
        // Neither a disk nor a network: any answer but this one means that the wrong field was read.
        assert_eq!(kind_of(Path::new("/proc")).unwrap(), Kind::Kernel("proc"));
        assert_eq!(kind_of(Path::new("/dev/shm")).unwrap(), Kind::Local);
    }
}
