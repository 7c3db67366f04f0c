//! The clock of this host that cannot be set.

/// Names the clock `CLOCK_BOOTTIME` of this host, which counts from the host's start, counts suspend and cannot be set:
/// the random id that the kernel drew at that start. Readings with different names must not be compared.
///
/// `None` where there is no such clock, or where it may have been moved: a time namespace can move it for the processes
/// inside, and the id stays the same.
#[cfg(target_os = "linux")]
#[must_use]
pub fn host_clock() -> Option<u128> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let id = uuid::Uuid::parse_str(id.trim()).ok()?.as_u128();
    is_in_first_time_namespace().then_some(id)
}

/// Other systems: no such clock is known.
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn host_clock() -> Option<u128> {
    None
}

/// The time namespace that every host starts with, by the number in the kernel's `proc_ns.h`.
#[cfg(target_os = "linux")]
const FIRST_TIME_NAMESPACE: &str = "time:[4026531834]";

/// A kernel without time namespaces has only the first one.
#[cfg(target_os = "linux")]
fn is_in_first_time_namespace() -> bool {
    match std::fs::read_link("/proc/self/ns/time") {
        Ok(namespace) => namespace.as_os_str() == FIRST_TIME_NAMESPACE,
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}
