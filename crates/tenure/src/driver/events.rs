//! What the driver does about the machine's events: tells the handles, the log and the counters.

use tenure_core::election::{Leader, Term};
use tenure_core::node::Event;
use tenure_core::{ElectionName, Lineage, Moment};

use super::{Driver, Run};
use crate::Token;
use crate::leadership::Leadership;
use crate::trust::{Of, Trust};

impl Driver {
    pub(super) fn on_event(&mut self, run: &mut Run, event: Event) {
        match event {
            Event::Trusted { until } => self.on_trusted(run, until),
            Event::Over { reason } => {
                tracing::warn!(%reason, "the session is over; all work stops");
                self.counters.session_lost();
                self.session.send_replace(None);
            }
            Event::Left => {
                tracing::info!("left");
                run.left = true;
            }
            Event::Cluster(event) => self.on_cluster_event(run, event),
            Event::SessionEnded { incarnation, end } => {
                tracing::info!(other = %incarnation, ?end, "another session has ended");
                self.counters
                    .session_ended(self.runtime.clock.moment(), incarnation);
                if let Some(daemons) = &self.daemons {
                    daemons.hub.session_ended(incarnation);
                }
            }
            Event::Leader { election, leader } => self.on_leader(&election, leader),
            Event::Elected {
                election,
                term,
                lineage,
            } => self.on_elected(run, election, term, lineage),
            Event::Stop { election, term } => {
                tracing::info!(%election, %term, "telling the work to stop");
                if let Some(nudger) = &mut self.nudger {
                    nudger.prepare(&self.runtime, &self.store, &self.keys, &election, &run.me);
                }
                // Trust now ends no later than the time that the work has to stop.
                run.refresh_trust(&election);
                if let Some(term) = run.leading.get(&election) {
                    term.stop();
                }
            }
            Event::Ended {
                election,
                term,
                reason,
            } => {
                tracing::info!(%election, %term, %reason, "term ended");
                // A span for exported traces: short, so that it is exported even if this process dies.
                let (node, incarnation) = (&run.me.node, run.me.incarnation);
                tracing::info_span!(
                    parent: None, "term ended", %node, %incarnation, %election, %term, %reason
                )
                .in_scope(|| {});
                self.counters.ended(&election, &reason);
                if let Some(ended) = run.leading.remove(&election) {
                    ended.end(reason.clone());
                }
                if let Some((seat, _)) = self.elections.get(&election) {
                    seat.ended(term, reason);
                }
            }
            Event::Anomaly { election, anomaly } => {
                tracing::error!(%election, "{anomaly}");
                self.counters.anomaly(&election);
            }
        }
    }

    fn on_trusted(&mut self, run: &mut Run, until: Moment) {
        tracing::debug!(remaining = ?until.since(self.runtime.clock.moment()), "trusted");
        self.counters.trusted_until(until);
        let is_new = self.session.send_if_modified(|current| {
            let is_new = current.is_none();
            *current = Some(run.me.clone());
            is_new
        });
        if is_new {
            tracing::info!("joined");
            self.counters.joined();
            self.look(run);
        }
        run.refresh_all_trust();
    }

    fn on_leader(&mut self, election: &ElectionName, leader: Option<Leader>) {
        match &leader {
            Some(Leader { node, term, .. }) => {
                tracing::info!(%election, %term, leader = %node, "the lease is held");
            }
            None => tracing::info!(%election, "the lease is free"),
        }
        self.counters
            .leader(self.runtime.clock.moment(), election, leader.as_ref());
        if leader.is_none()
            && let Some(nudger) = &mut self.nudger
        {
            nudger.vacated(election);
        }
        if election.as_str() == ElectionName::CLUSTER
            && let Some(daemons) = &self.daemons
        {
            daemons.hub.leader_is(leader.as_ref());
        }
        if let Some((seat, _)) = self.elections.get(election) {
            seat.leader_is(leader);
        }
    }

    fn on_elected(&mut self, run: &mut Run, election: ElectionName, term: Term, lineage: Lineage) {
        let Some((_, until)) = run.machine.leads_until(&election) else {
            return;
        };
        let Some((seat, _)) = self.elections.get(&election) else {
            return;
        };
        tracing::info!(%election, %term, "elected");
        let (node, incarnation) = (&run.me.node, run.me.incarnation);
        tracing::info_span!(parent: None, "elected", %node, %incarnation, %election, %term)
            .in_scope(|| {});
        self.counters.elected(&election, term);
        let trust = Trust::new(
            Of::Term(election.clone(), term),
            until,
            self.runtime.clock.clone(),
            self.reports.clone(),
        );
        let leadership = Leadership::new(
            trust,
            election.clone(),
            Token { lineage, term },
            run.me.incarnation,
            self.keys.fence(&election),
        );
        run.leading.insert(election, leadership.clone());
        seat.elected(leadership, term, lineage);
    }
}
