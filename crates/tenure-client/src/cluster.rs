//! The cluster: who is there, and moving leadership.

use reqwest::Method;
use serde::de::IgnoredAny;
use tenure_api::{Cluster, NodeId, Plan, ResignRequest, TransferRequest};

use crate::client::Client;
use crate::error::Error;
use crate::transport::Call;

impl Client {
    /// Nodes, elections and daemons, as the node that answers sees them.
    pub async fn cluster(&self) -> Result<Cluster, Error> {
        self.transport.call(&Call::get(&["v1", "cluster"])).await
    }

    /// What the leader would do about daemons now, and why, as far as the store tells.
    pub async fn plan(&self) -> Result<Plan, Error> {
        let call = Call::get(&["v1", "cluster", "plan"]);
        self.transport.call(&call).await
    }

    /// Asks the leader to let another node lead. Returns when it was asked, not when it has done so. Asked
    /// once only: asked again, the successor would go too.
    pub async fn resign_leader(&self) -> Result<(), Error> {
        let call = Call::post(&["v1", "leader", "resign"], &ResignRequest {})?.once();
        self.transport.call::<IgnoredAny>(&call).await.map(drop)
    }

    /// Asks the leader to hand over to a node. Returns when it was asked, not when it has done so.
    pub async fn transfer_leader(&self, node: &NodeId) -> Result<(), Error> {
        let request = TransferRequest { node: node.clone() };
        let call = Call::post(&["v1", "leader", "transfer"], &request)?;
        self.transport.call::<IgnoredAny>(&call).await.map(drop)
    }

    /// Asks for a node to be kept free of daemons, also if it is not there. Returns when it was asked.
    pub async fn drain_node(&self, node: &NodeId) -> Result<(), Error> {
        self.change_node(node, "drain").await
    }

    /// Lets a node run daemons again.
    pub async fn undrain_node(&self, node: &NodeId) -> Result<(), Error> {
        self.change_node(node, "undrain").await
    }

    async fn change_node(&self, node: &NodeId, change: &str) -> Result<(), Error> {
        let call = Call::new(Method::POST, &["v1", "nodes", node.as_str(), change]);
        self.transport.call::<IgnoredAny>(&call).await.map(drop)
    }
}
