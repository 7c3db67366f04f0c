//! What a seed makes of a run: how many hosts, how slow the store is, what goes wrong and how often.
//!
//! Every seed draws its own: some faults often, some never. Runs in which everything fails at once explore
//! less than runs in which a few things do.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure::cluster;
use tenure::queue;
use tenure_core::queue::{Keep, Rules, Settings};
use tenure_core::session::Config;
use tenure_random::Random;
use tenure_store::wrap::faulty::Faults;

use super::Options;
use super::faults::Fault;
use super::outbox;

/// What a run is like.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) hosts: usize,
    pub(crate) submitters: usize,
    pub(crate) workers: usize,
    pub(crate) session: Config,
    pub(crate) cluster: cluster::Config,
    pub(crate) log: queue::Config,
    /// The rules of the versions that a host may come up with: with two, each start upgrades it or takes it back.
    pub(crate) versions: &'static [Rules],
    /// Schedules that all fire in one moment.
    pub(crate) schedules: usize,
    /// Of a thousand calls that submit: how many bring many large payloads.
    pub(crate) large: u64,
    /// How long the store takes, each way.
    pub(crate) latency: Duration,
    /// Whether the store tells of changes.
    pub(crate) hints: bool,
    pub(crate) store: Faults,
    /// Whether the log is kept in files, not in objects.
    pub(crate) files: bool,
    pub(crate) disk: Disk,
    /// How often something is done to a host, on average.
    pub(crate) trouble_every: Duration,
    /// How often a client submits, on average.
    pub(crate) submit_every: Duration,
    /// How long finished jobs are kept, if it is not what it is by default.
    pub(crate) settings: Option<Settings>,
    /// Whether clocks stand still at times: then the trust of that host is worth nothing for a while, and only fencing protects.
    pub(crate) freezes: bool,
    /// Of a thousand daemons that start or run: how many fail, or do not end when they are told to.
    pub(crate) daemons_bad: u64,
    /// Of a thousand calls.
    pub(crate) calls_bad: u64,
    /// Of a thousand jobs.
    pub(crate) workers_bad: u64,
    /// The outbox, if there is one.
    pub(crate) outbox: Option<outbox::Plan>,
    off: BTreeSet<Fault>,
}

/// So little in one commit that it takes several even for as many firings as one record may have.
pub(crate) const BATCH_BYTES_SMALL: usize = 30_000;

/// What the disk is like.
#[derive(Debug, Clone)]
pub(crate) struct Disk {
    /// How long a step takes, and a sync, on average.
    pub(crate) step: Duration,
    pub(crate) sync: Duration,
    /// Of a thousand steps: how many take very long, find the disk full, fail, show a write half done, or find
    /// their process struck.
    pub(crate) slow: u64,
    pub(crate) full: u64,
    pub(crate) broken: u64,
    pub(crate) seen: u64,
    pub(crate) struck: u64,
}

impl Plan {
    /// Draws a plan, without some faults. Half of all keep the log in files, and in a third of all hosts freeze, unless it
    /// is said which.
    pub(crate) fn draw(random: &mut Random, options: &Options) -> Self {
        let off = &options.off;
        let ttl = Duration::from_secs(*random.pick(&[2, 5, 10, 10]));
        let mut session = Config::for_ttl(ttl);
        session.strict_age = random.chance(300);
        session.stop_within = Duration::from_secs(*random.pick(&[2, 30]));
        let mut plan = Self {
            hosts: 2 + random.index(2),
            submitters: 2,
            workers: 4,
            cluster: cluster::Config::for_session(&session),
            session,
            log: log(random),
            versions: *random.pick(&VERSIONS),
            schedules: *random.pick(&[0, 0, 0, 0, 0, 2_000]),
            // Each brings 5 MiB, which every later snapshot and take-over carries: about ten in a run.
            large: *random.pick(&[0, 0, 0, 8]),
            latency: Duration::from_millis(*random.pick(&[1, 3, 10, 40])),
            hints: random.chance(600),
            store: Faults::default(),
            files: random.chance(500),
            disk: disk(random),
            trouble_every: Duration::from_secs(*random.pick(&[4, 8, 15, 30])),
            submit_every: Duration::from_millis(*random.pick(&[2_000, 4_000, 8_000])),
            settings: settings(random),
            freezes: random.chance(350),
            daemons_bad: *random.pick(&[0, 20, 150]),
            calls_bad: *random.pick(&[0, 20, 60]),
            workers_bad: *random.pick(&[0, 50, 150]),
            outbox: None,
            off: off.clone(),
        };
        plan.store = plan.draw_store(random);
        if !plan.allows(Fault::ScheduleOfMany) {
            plan.schedules = 0;
        }
        if plan.schedules > 0 {
            // More is due at once than one record takes: in number, and often in bytes too.
            plan.log.batch_bytes_max = *random.pick(&[BATCH_BYTES_SMALL, 300_000]);
            plan.large = 0;
            plan.settings = None;
        }
        plan.files = options.files.unwrap_or(plan.files);
        plan.freezes = options.freezes.unwrap_or(plan.freezes) && plan.allows(Fault::Frozen);
        plan
    }

    /// The same with an outbox, if the seed or the options say so. Its ids have to be known for long, which the first rules do not promise.
    pub(crate) fn with_outbox(mut self, seed: u64, wanted: Option<bool>) -> Self {
        self.outbox = outbox::Plan::draw(seed, wanted);
        if self.outbox.is_some() {
            self.versions = &[Rules::LATEST];
        }
        self
    }

    /// Whether a fault may happen.
    pub(crate) fn allows(&self, fault: Fault) -> bool {
        !self.off.contains(&fault)
    }

    fn draw_store(&self, random: &mut Random) -> Faults {
        let mut often = |fault: Fault, per_mille: &[u32]| {
            let per_mille = *random.pick(per_mille);
            if self.allows(fault) {
                f64::from(per_mille) / 1000.0
            } else {
                0.0
            }
        };
        let rates = [0, 2, 10, 40];
        let delayed = often(Fault::StoreSlow, &[10, 40, 100]);
        let refused = often(Fault::StoreRefused, &rates);
        let answer_lost = often(Fault::StoreAnswerLost, &rates);
        let request_lost = often(Fault::StoreRequestLost, &rates);
        let late = often(Fault::StoreRequestLate, &rates);
        let duplicated = often(Fault::StoreRequestDoubled, &rates);
        let retried = often(Fault::StoreRequestRetried, &rates);
        let young = often(Fault::StoreAgeWrong, &[0, 100, 500]);
        let hint_lost = often(Fault::HintLost, &[0, 50, 500]);
        let hint_doubled = often(Fault::HintDoubled, &[0, 100]);
        let hint_late = often(Fault::HintLate, &[0, 100]);
        let delay_max = self.session.request_timeout.mul_f64(1.5);
        let late_max = self.session.ttl * u32::try_from(1 + random.below(6)).unwrap_or(1);
        Faults {
            delayed,
            // What takes a few milliseconds more is not a fault: the latency has it.
            delay: self.session.request_timeout / 2..=delay_max,
            refused,
            answer_lost,
            request_lost,
            late,
            late_by: Duration::ZERO..=late_max,
            duplicated,
            retried,
            young,
            hint_lost,
            hint_doubled,
            hint_late,
        }
    }
}

/// The versions of a run: one, the other, or both.
const VERSIONS: [&[Rules]; 4] = [
    &[Rules::LATEST],
    &[Rules::FIRST],
    &[Rules::FIRST, Rules::LATEST],
    &[Rules::SECOND, Rules::LATEST],
];

/// Long enough for a client to hear of its job, most of the time.
fn settings(random: &mut Random) -> Option<Settings> {
    let mut keep = || Keep {
        age_ms: *random.pick(&[Some(60_000), Some(600_000), None]),
        count: *random.pick(&[Some(20), Some(200), None]),
    };
    let mut settings = Settings {
        completed: keep(),
        cancelled: keep(),
        dead: keep(),
        ..Settings::default()
    };
    if random.chance(200) {
        // So little room that there is none at times.
        settings.jobs_max = *random.pick(&[25, 60]);
        for keep in [
            &mut settings.completed,
            &mut settings.cancelled,
            &mut settings.dead,
        ] {
            keep.count = Some(10);
        }
        return Some(settings);
    }
    random.chance(500).then_some(settings)
}

fn disk(random: &mut Random) -> Disk {
    Disk {
        step: Duration::from_micros(*random.pick(&[100, 400, 2_000])),
        sync: Duration::from_millis(*random.pick(&[1, 5, 30])),
        slow: *random.pick(&[0, 2, 10]),
        full: *random.pick(&[0, 2, 20]),
        broken: *random.pick(&[0, 1, 5]),
        seen: *random.pick(&[0, 100, 500]),
        struck: *random.pick(&[0, 1, 3]),
    }
}

/// Small everything, so that a run sees many snapshots, parts and clean-ups.
fn log(random: &mut Random) -> queue::Config {
    queue::Config {
        commit_interval: Duration::from_millis(*random.pick(&[0, 0, 50])),
        request_timeout: Duration::from_secs(*random.pick(&[2, 5])),
        patience: Duration::from_secs(*random.pick(&[1, 5])),
        part_bytes_max: *random.pick(&[2_000, 20_000]),
        snapshot_bytes_min: *random.pick(&[2_000, 10_000, 50_000]),
        object_cost_bytes: *random.pick(&[0, 200, 2_000]),
        read_ahead: *random.pick(&[1, 4, 32]),
        segment_bytes_max: *random.pick(&[3_000, 30_000, 300_000]),
        ..queue::Config::default()
    }
}
