//! Where everything of a namespace is kept.

use tenure_core::session::Holder;
use tenure_core::{ElectionName, Incarnation, Namespace, NodeId};
use tenure_store::{Key, Prefix};

const NAMES_FIT: &str = "a namespace and a name of 200 bytes each, and an incarnation, fit a key";

/// The keys of one namespace.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    namespace: Namespace,
}

impl Keys {
    pub(crate) fn new(namespace: Namespace) -> Self {
        Self { namespace }
    }

    pub(crate) fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    pub(crate) fn session(&self, holder: &Holder) -> Key {
        self.key(&format!("nodes/{}/{}", holder.node, holder.incarnation))
    }

    pub(crate) fn lease(&self, election: &ElectionName) -> Key {
        self.key(&format!("elections/{election}"))
    }

    pub(crate) fn fence(&self, election: &ElectionName) -> Key {
        self.key(&format!("fences/{election}"))
    }

    pub(crate) fn sessions_of(&self, node: &NodeId) -> Prefix {
        self.prefix(&format!("nodes/{node}"))
    }

    /// Whose session this is the key of.
    pub(crate) fn session_of(key: &Key) -> Option<(NodeId, Incarnation)> {
        let mut names = key.as_str().rsplit('/');
        let incarnation = names.next()?.parse().ok()?;
        Some((NodeId::new(names.next()?).ok()?, incarnation))
    }

    pub(crate) const ASSIGNMENTS: &str = "assignments";
    pub(crate) const DRAINS: &str = "drains";

    pub(crate) fn assignments(&self) -> Key {
        self.key(&format!("cluster/{}", Self::ASSIGNMENTS))
    }

    pub(crate) fn drains(&self) -> Key {
        self.key(&format!("cluster/{}", Self::DRAINS))
    }

    pub(crate) fn cluster(&self) -> Prefix {
        self.prefix("cluster")
    }

    /// Everything of the namespace.
    pub(crate) fn all(&self) -> Prefix {
        Prefix::new(self.namespace.as_str()).expect(NAMES_FIT)
    }

    pub(crate) fn nodes(&self) -> Prefix {
        self.prefix("nodes")
    }

    pub(crate) fn elections(&self) -> Prefix {
        self.prefix("elections")
    }

    fn key(&self, rest: &str) -> Key {
        Key::new(format!("{}/{rest}", self.namespace)).expect(NAMES_FIT)
    }

    fn prefix(&self, rest: &str) -> Prefix {
        Prefix::new(format!("{}/{rest}", self.namespace)).expect(NAMES_FIT)
    }
}
