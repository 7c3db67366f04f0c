//! Whether everything that is stored is whole, and fits together.
//!
//! Every frame is read and its checksums are calculated. The log must go on without a gap, in places,
//! positions and take-overs, from the last snapshot but one, or from its first place, to its end, and must
//! come as far as it is known to reach (see [`reached`](crate::log::reached)); each
//! snapshot that counts must have the parts that its manifest names. Damage does not end the search: all of it
//! is named.

use futures_util::StreamExt;

use super::{
    Error, Form, Frame, Frames, Kind, Name, Origin, RESTARTS_MAX, Segment, Snapshot, Stored,
};
use crate::log::Position;
use crate::log::origin::all_lost;
use crate::log::reached::Reached;

/// Something that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// What is stored is not what was written, or is not there.
    Damage {
        /// The object, or the file and the place in it.
        location: String,
        /// What is wrong with it.
        what: String,
    },
    /// Something that is no part of the log, and harms nobody.
    Remains {
        /// The object, or the file and the place in it.
        location: String,
        /// What it is.
        what: String,
    },
}

/// What was looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verified {
    /// Snapshots that count.
    pub snapshots: u64,
    /// Frames of the log.
    pub frames: u64,
    /// Records in them.
    pub records: u64,
    /// Bytes of everything.
    pub bytes: u64,
    /// The last place.
    pub place: u64,
    /// The last record.
    pub position: Position,
}

/// One look at everything.
struct Pass<'a> {
    stored: &'a Stored,
    tell: &'a (dyn Fn(&Verified) + Sync),
    findings: Vec<Finding>,
    verified: Verified,
    /// The last place and record, and who wrote it; unknown behind damage.
    last: Option<(u64, Position)>,
    /// The last place that was found in the log itself.
    found: u64,
    takeover: u64,
}

impl Stored {
    /// Reads everything and checks it. Begins again if a leader has cleaned up meanwhile.
    pub async fn verify(&self) -> Result<(Verified, Vec<Finding>), Error> {
        self.verify_and_tell(&|_| {}).await
    }

    /// The same, and tells after each frame how far it has come.
    pub async fn verify_and_tell(
        &self,
        tell: &(dyn Fn(&Verified) + Sync),
    ) -> Result<(Verified, Vec<Finding>), Error> {
        for _ in 0..RESTARTS_MAX {
            let before = self.newest_snapshot().await?;
            let mut pass = Pass::new(self, tell);
            pass.run().await?;
            let is_damaged = pass
                .findings
                .iter()
                .any(|finding| matches!(finding, Finding::Damage { .. }));
            // What is missing may have been cleaned up behind a newer snapshot. Damage stays.
            if !is_damaged || self.newest_snapshot().await? == before {
                return Ok((pass.verified, pass.findings));
            }
        }
        Err(Error::corrupt(
            &self.access.keys.queue(),
            "new snapshots come faster than everything can be read",
        ))
    }

    async fn newest_snapshot(&self) -> Result<Option<Name>, Error> {
        let snapshots = self.snapshots().await?;
        let published = snapshots.into_iter().filter(|one| one.is_published);
        Ok(published.map(|one| one.name).max())
    }
}

impl<'a> Pass<'a> {
    fn new(stored: &'a Stored, tell: &'a (dyn Fn(&Verified) + Sync)) -> Self {
        Self {
            stored,
            tell,
            findings: Vec::new(),
            verified: Verified::default(),
            last: None,
            found: 0,
            takeover: 0,
        }
    }

    async fn run(&mut self) -> Result<(), Error> {
        // Before the log, which only grows.
        let reached = match Reached::read(&self.stored.access).await {
            Err(Error::Corrupt { location, what }) => {
                self.damage(location, what);
                None
            }
            reached => reached?,
        };
        let keys = &self.stored.access.keys;
        let is_begun = reached.is_none() && self.stored.access.is_there(keys.begun()).await?;
        let snapshots = self.stored.snapshots().await?;
        let mut published = vec![(0, Some(Position(0)))];
        for snapshot in &snapshots {
            let position = self.snapshot(snapshot).await?;
            if snapshot.is_published && published.iter().all(|one| one.0 != snapshot.place) {
                published.push((snapshot.place, position));
            }
        }
        // From where the log must be whole: the last but one, or its beginning. What clean-up has left of
        // older ones proves nothing. If only one is left of the two up to which the log was cleaned up, a broker starts
        // from that one.
        let (from, position) = match published[..] {
            [_, only] if !self.has_beginning(only.0).await? => only,
            _ => published[published.len().saturating_sub(2)],
        };
        self.last = position.map(|position| (from, position));
        match self.stored.summary().form {
            Form::Objects => self.objects(from).await?,
            Form::Segments => self.segments(from).await?,
        }
        let takeover = self.stored.summary().takeover;
        if self.takeover > takeover {
            let location = self.stored.access.keys.origin().to_string();
            let what = format!(
                "it records takeover {takeover}, but takeover {} is in the log",
                self.takeover
            );
            // A leader may have taken over since the origin was read.
            let now = Origin::read(&self.stored.access).await?;
            if now.is_none_or(|now| now.takeover < self.takeover) {
                self.findings.push(Finding::Damage { location, what });
            }
        }
        if let Some((place, position)) = self.last {
            (self.verified.place, self.verified.position) = (place, position);
            let access = &self.stored.access;
            // Without the note people have said that the log is to be taken as it is. But files are needed to go on from.
            let is_gone = self.found == 0 && self.stored.summary().form == Form::Segments;
            match reached.map(|reached| reached.check(access, place)) {
                Some(Err(Error::Corrupt { location, what })) => {
                    self.findings.push(Finding::Damage { location, what });
                }
                // A leader notes that there is a log behind its first frame, so one without any frame has lost them all.
                None if place == 0 && is_begun => {
                    let lost = all_lost(&access.keys, "all of its commits are missing");
                    if let Error::Corrupt { location, what } = lost {
                        self.damage(location, what);
                    }
                }
                None if !is_gone => {}
                _ => self.leads_to(&snapshots),
            }
        }
        Ok(())
    }

    /// The log itself has the place of the newest snapshot: clean-up never takes that.
    fn leads_to(&mut self, snapshots: &[Snapshot]) {
        let published = snapshots.iter().filter(|one| one.is_published);
        let newest = published.max_by_key(|one| one.place);
        let Some(newest) = newest.filter(|newest| newest.place > self.found) else {
            return;
        };
        let (keys, found) = (&self.stored.access.keys, self.found);
        let location = match self.stored.summary().form {
            Form::Objects => keys.log_object(found + 1).to_string(),
            Form::Segments => keys.segments().to_string(),
        };
        let what = format!(
            "it is missing or cut short: the log ends at index {found}, but {} contains index {}",
            newest.name, newest.place
        );
        self.findings.push(Finding::Damage { location, what });
    }

    /// Whether the log still has its places up to this one, as far as can be told without reading them. Of what was
    /// cleaned up, some objects may be left.
    async fn has_beginning(&self, to: u64) -> Result<bool, Error> {
        let first = match self.stored.summary().form {
            Form::Objects => {
                let mut before = 0;
                while before < to {
                    let places = self.stored.places(before).await?;
                    if places.is_empty() {
                        return Ok(false);
                    }
                    for place in places {
                        if place != before + 1 {
                            return Ok(before >= to);
                        }
                        before = place;
                    }
                }
                return Ok(true);
            }
            Form::Segments => {
                let segments = self.stored.segments().await?;
                let Some(first) = segments.iter().find(|segment| segment.is_in_log) else {
                    return Ok(true);
                };
                match self.stored.frames(&first.name).next().await {
                    Ok(frame) => frame.map(|frame| frame.place),
                    // It is named when all of it is read.
                    Err(Error::Corrupt { .. } | Error::Invalid { .. }) => None,
                    Err(error) => return Err(error),
                }
            }
        };
        Ok(first.is_none_or(|first| first <= 1))
    }

    /// Reads a snapshot; returns its last record if it can be read.
    async fn snapshot(&mut self, snapshot: &Snapshot) -> Result<Option<Position>, Error> {
        if !snapshot.is_published {
            self.findings.push(Finding::Remains {
                location: snapshot.name.to_string(),
                what: "a snapshot that is not finished".to_owned(),
            });
            return Ok(None);
        }
        let mut frames = self.stored.frames(&snapshot.name);
        let mut position = None;
        while let Some(frame) = self.next(&mut frames).await? {
            self.verified.bytes += frame.bytes;
            position = Some(frame.position);
        }
        self.verified.snapshots += 1;
        (self.tell)(&self.verified);
        Ok(position)
    }

    async fn objects(&mut self, from: u64) -> Result<(), Error> {
        let (mut after, mut before) = (0, from);
        loop {
            let places = self.stored.places(after).await?;
            let Some(&last) = places.last() else {
                return Ok(());
            };
            after = last;
            let mut found = self.stored.at(places);
            while let Some((place, found)) = found.next().await {
                // Older ones are kept for ever, or are still to be cleaned up.
                let is_wanted = place > from;
                let location = self.stored.access.keys.log_object(place).to_string();
                if is_wanted && place > before + 1 {
                    let what = match place - before - 1 {
                        1 => format!("index {} is missing before it", before + 1),
                        _ => format!(
                            "indexes {} to {} are missing before it",
                            before + 1,
                            place - 1
                        ),
                    };
                    self.damage(location.clone(), what);
                }
                before = before.max(place);
                match found {
                    Ok(Some(frame)) => {
                        if is_wanted {
                            self.follow(&frame);
                        }
                        self.count(&frame);
                    }
                    Ok(None) if is_wanted => self.damage(location, "it is missing".to_owned()),
                    Ok(None) => {}
                    Err(Error::Corrupt { location, what }) => self.damage(location, what),
                    Err(error) => return Err(error),
                }
            }
        }
    }

    fn damage(&mut self, location: String, what: String) {
        self.findings.push(Finding::Damage { location, what });
        self.last = None;
    }

    async fn segments(&mut self, from: u64) -> Result<(), Error> {
        let segments = self.stored.segments().await?;
        let last = segments.iter().rposition(|segment| segment.is_in_log);
        for (index, segment) in segments.iter().enumerate() {
            if let Some(what) = segment.misnamed.clone() {
                self.misnamed(segment, what);
                continue;
            }
            let found = self.findings.len();
            // What is damaged in a file that is in no log, and has been replaced, harms nobody.
            if !segment.is_in_log && Some(index) < last {
                self.remains(segment, &segment.name.to_string(), 0, false)
                    .await?;
                continue;
            }
            let mut frames = self.stored.frames(&segment.name);
            let mut end = 0;
            let mut location = segment.name.to_string();
            while let Some(frame) = self.next(&mut frames).await? {
                let is_in_log =
                    segment.is_in_log && segment.end.is_none_or(|end| frame.offset < end);
                end = frame.offset + frame.bytes;
                location.clone_from(&frame.location);
                if is_in_log && frame.offset == 0 && frame.place > from + 1 {
                    self.came_from(segment);
                }
                if is_in_log && frame.place > from {
                    self.follow(&frame);
                }
                if is_in_log {
                    self.count(&frame);
                }
            }
            // Behind damage nothing can be told apart.
            if self.findings.len() == found {
                let is_last = Some(index) == last;
                self.remains(segment, &location, end, is_last).await?;
            }
        }
        Ok(())
    }

    /// A file goes on from another that is needed, and must be there.
    fn came_from(&mut self, segment: &Segment) {
        if let Some(missing) = &segment.missing {
            let what = format!("it is missing, but {} continues from it", segment.name);
            self.damage(missing.to_string(), what);
        }
    }

    /// A file that is not what it is called: in nobody's way, unless the log goes on in it.
    fn misnamed(&mut self, segment: &Segment, what: String) {
        let location = segment.name.to_string();
        if segment.is_in_log {
            self.damage(location, what);
        } else {
            let what = format!("{what}; it is not part of the log: move it away");
            self.findings.push(Finding::Remains { location, what });
        }
    }

    /// What lies in a file behind its last frame, or behind the log.
    async fn remains(
        &mut self,
        segment: &Segment,
        location: &str,
        end: u64,
        is_last: bool,
    ) -> Result<(), Error> {
        let bytes = self.stored.size(&segment.name).await?;
        let remains = |at: u64, what: &str| Finding::Remains {
            location: format!("{location} at offset {at}"),
            what: what.to_owned(),
        };
        if !segment.is_in_log {
            let finding = remains(0, "a file left by a replaced leader, not part of the log");
            self.findings.push(finding);
        } else if let Some(to) = segment.end.filter(|&to| to > end) {
            let what = format!("a frame is cut short, but the log continues to {to}");
            self.damage(format!("{location} at offset {end}"), what);
        } else if let Some(to) = segment.end.filter(|&to| to < bytes) {
            self.findings.push(remains(
                to,
                "appended by a replaced leader, not part of the log",
            ));
        } else if is_last && bytes > end {
            self.findings.push(remains(
                end,
                "an unfinished frame; it was never acknowledged if a crash tore it",
            ));
        }
        Ok(())
    }

    /// The next frame that can be read. Damage is noted.
    async fn next(&mut self, frames: &mut Frames) -> Result<Option<Frame>, Error> {
        loop {
            match frames.next().await {
                Ok(frame) => return Ok(frame),
                Err(Error::Corrupt { location, what }) => self.damage(location, what),
                // Cleaned up since it was listed. If it was needed, what follows does not fit.
                Err(Error::Invalid { .. }) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Checks that a frame of the log follows the one before.
    fn follow(&mut self, frame: &Frame) {
        let mut wrong = Vec::new();
        let here = (frame.place, frame.position);
        if let Some((place, position)) = self.last
            && here != (place + 1, position.next())
        {
            wrong.push(format!(
                "index {} with record {} follows index {place} with record {position}",
                here.0, here.1
            ));
        }
        if frame.takeover < self.takeover {
            wrong.push(format!(
                "takeover {} follows takeover {}",
                frame.takeover, self.takeover
            ));
        }
        if matches!(frame.kind, Kind::Part | Kind::Manifest) {
            wrong.push("a part of a snapshot is in the log".to_owned());
        }
        for what in wrong {
            let location = match self.stored.summary().form {
                Form::Objects => frame.location.clone(),
                Form::Segments => format!("{} at offset {}", frame.location, frame.offset),
            };
            self.findings.push(Finding::Damage { location, what });
        }
        self.last = Some((frame.place, frame.last()));
        self.takeover = self.takeover.max(frame.takeover);
    }

    fn count(&mut self, frame: &Frame) {
        self.found = self.found.max(frame.place);
        self.verified.frames += 1;
        self.verified.bytes += frame.bytes;
        if frame.kind == Kind::Commit {
            self.verified.records += frame.count() as u64;
        }
        (self.tell)(&self.verified);
    }
}
