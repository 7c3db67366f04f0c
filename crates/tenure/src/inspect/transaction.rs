//! A request to resign inside the caller's own transaction: the leader is asked if and only if that commits.
//!
//! The transaction must run in the database that is the store. The row of the lease is locked from the request on until the
//! transaction ends, so keep it short: nobody else can take the lease meanwhile, or give it up. The leader sees the request
//! at its next look, a heartbeat later at most: nothing is announced to it.

use tenure_core::election::{Lease, Request, RequestKind, Writer};
use tenure_core::session::Record;
use tenure_core::{ElectionName, Incarnation, NodeId, Nonce};

use super::NamespaceView;
use crate::transaction::{NewObject, StoredObject, Transactional, new_version};

/// Why the leader was not asked. Whether the transaction can go on is for its database to say.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// Nobody leads, or this is not the database that is the store. Nothing was changed.
    #[error("nobody leads the election {election}, as far as this database says")]
    NoLeader {
        /// Which.
        election: ElectionName,
    },
    /// The lease cannot be read by this version. Nothing was changed.
    #[error("cannot read {key}")]
    Unreadable {
        /// Where it is.
        key: String,
        /// Why.
        source: tenure_core::RecordError,
    },
    /// The lease has changed since this transaction has read it. Roll it back and try again.
    #[error("the lease of {election} has changed")]
    Changed {
        /// Which.
        election: ElectionName,
    },
    /// The database failed.
    #[error("could not ask the leader to resign")]
    Database(#[from] sqlx::Error),
}

impl NamespaceView {
    /// Asks the leader to resign, in the transaction that is open on `connection`: if that is rolled back, nobody was asked.
    /// Asks nobody a second time who is asked already.
    ///
    /// ```no_run
    /// # async fn example(view: tenure::NamespaceView, pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut transaction = pool.begin().await?;
    /// sqlx::query("UPDATE settings SET region = 'west'").execute(&mut *transaction).await?;
    /// view.request_resign_tx(&mut *transaction, &"reports".parse()?, &"admin".parse()?).await?;
    /// transaction.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn request_resign_tx(
        &self,
        connection: &mut impl Transactional,
        election: &ElectionName,
        by: &NodeId,
    ) -> Result<(), RequestError> {
        let no_leader = || RequestError::NoLeader {
            election: election.clone(),
        };
        let key = self.keys.lease(election);
        let key = key.as_str();
        let found = connection.lock_object(key).await?;
        let StoredObject { value, version, .. } = found.ok_or_else(no_leader)?;
        let lease = Lease::decode(&value).map_err(|source| RequestError::Unreadable {
            key: key.to_owned(),
            source,
        })?;
        let lapses = match lease.holder() {
            None => false,
            Some(holder) => {
                let session = self.keys.session(holder);
                let session = connection.read_object(session.as_str()).await?;
                let session = session.and_then(|session| Record::decode(&session.value).ok());
                session.is_some_and(|session| session.is_one_shot())
            }
        };
        let request = Request {
            kind: RequestKind::Resign,
            by: by.clone(),
            lapses,
        };
        if lease.is_asked(&request) {
            return Ok(());
        }
        let writer = Writer {
            incarnation: Incarnation(uuid::Uuid::new_v4().as_u128()),
            counter: 1,
            nonce: Nonce::default(),
        };
        let asked = lease.with_request(request, writer).ok_or_else(no_leader)?;
        let object = NewObject {
            key,
            value: &asked.encode(),
            version: new_version(),
            expected: Some(version),
            // The holder trusts itself by its own looks, until this commits: an age would count from before that.
            is_dated: false,
        };
        if connection.write_object(&object).await? {
            Ok(())
        } else {
            Err(RequestError::Changed {
                election: election.clone(),
            })
        }
    }
}
