//! Names that many jobs share, kept once and counted: the last user gone, the name is forgotten, so
//! clients that invent a new type for every job cost no more than their jobs.

use std::collections::BTreeMap;
use std::ops::{Bound, Index, IndexMut};

use super::slab::{Handle, Slab};

/// Names of one kind, each with a value of its own.
#[derive(Debug)]
pub(crate) struct Names<N, T> {
    by_name: BTreeMap<N, Handle>,
    entries: Slab<Entry<N, T>>,
}

#[derive(Debug)]
struct Entry<N, T> {
    name: N,
    users: u32,
    value: T,
}

impl<N: Ord + Clone, T: Default> Names<N, T> {
    pub(crate) const fn new() -> Self {
        Self {
            by_name: BTreeMap::new(),
            entries: Slab::new(),
        }
    }

    pub(crate) fn find(&self, name: &N) -> Option<Handle> {
        self.by_name.get(name).copied()
    }

    pub(crate) fn name(&self, handle: Handle) -> &N {
        &self.entries[handle].name
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// In the order of the names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&N, Handle, &T)> {
        self.by_name
            .iter()
            .map(|(name, &handle)| (name, handle, &self.entries[handle].value))
    }

    /// The same behind a name.
    pub(crate) fn iter_behind(&self, name: Option<&N>) -> impl Iterator<Item = (&N, Handle, &T)> {
        let from = name.map_or(Bound::Unbounded, Bound::Excluded);
        self.by_name
            .range::<N, _>((from, Bound::Unbounded))
            .map(|(name, &handle)| (name, handle, &self.entries[handle].value))
    }

    /// The name's place; one more user.
    pub(crate) fn take(&mut self, name: &N) -> Handle {
        if let Some(&handle) = self.by_name.get(name) {
            self.entries[handle].users += 1;
            return handle;
        }
        let handle = self.entries.insert(Entry {
            name: name.clone(),
            users: 1,
            value: T::default(),
        });
        self.by_name.insert(name.clone(), handle);
        handle
    }

    /// One user less.
    pub(crate) fn release(&mut self, handle: Handle) {
        let entry = &mut self.entries[handle];
        entry.users -= 1;
        if entry.users == 0 {
            let entry = self.entries.remove(handle);
            self.by_name.remove(&entry.name);
        }
    }

    #[cfg(test)]
    pub(crate) fn users(&self, handle: Handle) -> u32 {
        self.entries[handle].users
    }
}

impl<N, T> Index<Handle> for Names<N, T> {
    type Output = T;
    fn index(&self, handle: Handle) -> &T {
        &self.entries[handle].value
    }
}

impl<N, T> IndexMut<Handle> for Names<N, T> {
    fn index_mut(&mut self, handle: Handle) -> &mut T {
        &mut self.entries[handle].value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_lives_as_long_as_its_users() {
        let mut names: Names<String, u8> = Names::new();
        let mail = names.take(&"mail".to_owned());
        names[mail] = 7;
        assert_eq!(names.take(&"mail".to_owned()), mail);
        names.release(mail);
        assert_eq!((names.name(mail).as_str(), names[mail]), ("mail", 7));
        names.release(mail);
        assert_eq!((names.find(&"mail".to_owned()), names.len()), (None, 0));
    }
}
