//! The screen and its keys. Holds the state of the screen, and performs no actions.

use std::sync::Arc;

use ratatui::Frame;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Row, Table, TableState};
use tenure_client::{QueueName, api};

use super::act::Action;
use super::inside::{self, Found, Inside};
use super::order::Order;
use super::plain;
use super::seen::{Answer, Seen};

const KEYS: &str = " ↑↓ choose  ⏎ open  s sort  / filter  p pause or resume  r retry dead  R ask the leader to resign  q quit";

const KEYS_INSIDE: &str = " ↑↓ choose or scroll  ⏎ open  esc back  q quit";

/// How many rows the page keys move.
const PAGE: isize = 10;

/// The most characters of a filter.
const FILTER_MAX: usize = 60;

/// What a key asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Nothing,
    Quit,
    Do(Action),
    /// [`Screen::inside`] has changed.
    Look,
}

#[derive(Debug, Default)]
pub(crate) struct Screen {
    seen: Option<Arc<Seen>>,
    /// Why the data is not up to date.
    problem: Option<String>,
    /// The result of the last action.
    said: Option<String>,
    /// The action that waits for confirmation.
    asked: Option<Action>,
    order: Order,
    /// Whether keys go to the filter.
    is_typing: bool,
    /// The chosen queue, by name, so that it stays chosen when the order changes.
    chosen: Option<QueueName>,
    inside: Inside,
    /// The content of the open detail screen, once fetched.
    found: Option<Found>,
    /// The index of the chosen job, or of the first line shown.
    place: usize,
}

impl Screen {
    /// What is open.
    pub(crate) fn inside(&self) -> &Inside {
        &self.inside
    }

    pub(crate) fn see(&mut self, answer: Option<Answer>) {
        match answer {
            Some((inside, Ok(seen))) => {
                // A late answer for what was open before is dropped.
                if inside == self.inside {
                    self.found.clone_from(&seen.found);
                }
                self.seen = Some(seen);
                self.problem = None;
            }
            Some((_, Err(problem))) => self.problem = Some(problem),
            None => {}
        }
        self.keep_chosen();
    }

    pub(crate) fn said(&mut self, text: String) {
        self.said = Some(text);
    }

    pub(crate) fn take(&mut self, event: &Event) -> Wish {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.key(key),
            _ => Wish::Nothing,
        }
    }

    fn key(&mut self, key: &KeyEvent) -> Wish {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if is_control && matches!(key.code, KeyCode::Char('c' | 'd')) {
            return Wish::Quit;
        }
        if let Some(action) = self.asked.take() {
            return match key.code {
                KeyCode::Char('y' | 'Y') => Wish::Do(action),
                _ => Wish::Nothing,
            };
        }
        self.said = None;
        if self.is_typing {
            self.type_filter(key.code);
            return Wish::Nothing;
        }
        match key.code {
            KeyCode::Char('q') => return Wish::Quit,
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left => return self.back(key.code),
            KeyCode::Enter | KeyCode::Right => return self.look_in(),
            KeyCode::Down | KeyCode::Char('j') => self.choose(1),
            KeyCode::Up | KeyCode::Char('k') => self.choose(-1),
            KeyCode::PageDown => self.choose(PAGE),
            KeyCode::PageUp => self.choose(-PAGE),
            KeyCode::Home => self.choose(isize::MIN),
            KeyCode::End => self.choose(isize::MAX),
            KeyCode::Char(key) if self.inside == Inside::Nothing => self.act(key),
            _ => {}
        }
        Wish::Nothing
    }

    /// The keys of the first screen.
    fn act(&mut self, key: char) {
        match key {
            's' => self.order.next(),
            'S' => self.order.reverse(),
            '/' => self.is_typing = true,
            'p' => self.asked = self.pausing(),
            'r' => self.asked = self.chosen.clone().map(Action::Retry),
            'R' => self.asked = Some(Action::Resign),
            _ => {}
        }
    }

    fn type_filter(&mut self, code: KeyCode) {
        let filter = &mut self.order.filter;
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                filter.clear();
                self.is_typing = false;
            }
            KeyCode::Backspace => {
                filter.pop();
            }
            KeyCode::Char(character) if filter.chars().count() < FILTER_MAX => {
                filter.push(character);
            }
            _ => {}
        }
        self.keep_chosen();
    }

    /// Goes one step back: from a job to its queue, from a queue to all queues, then removes the filter, then quits.
    fn back(&mut self, code: KeyCode) -> Wish {
        let outer = match (&self.inside, &self.found) {
            (Inside::Job(_), Some(Found::Job(job))) => Inside::Queue(job.queue.clone()),
            (Inside::Job(_), _) => self.chosen.clone().map_or(Inside::Nothing, Inside::Queue),
            (Inside::Queue(_), _) => Inside::Nothing,
            (Inside::Nothing, _) if !self.order.filter.is_empty() => {
                self.order.filter.clear();
                return Wish::Nothing;
            }
            (Inside::Nothing, _) if code == KeyCode::Esc => return Wish::Quit,
            (Inside::Nothing, _) => return Wish::Nothing,
        };
        self.look(outer)
    }

    fn look_in(&mut self) -> Wish {
        let inner = match (&self.inside, &self.found) {
            (Inside::Nothing, _) => self.chosen.clone().map(Inside::Queue),
            (Inside::Queue(_), Some(Found::Jobs(jobs))) => {
                jobs.get(self.place).map(|job| Inside::Job(job.id.clone()))
            }
            _ => None,
        };
        inner.map_or(Wish::Nothing, |inner| self.look(inner))
    }

    fn look(&mut self, inside: Inside) -> Wish {
        self.inside = inside;
        self.found = None;
        self.place = 0;
        Wish::Look
    }

    fn queues<'a>(&self, seen: &'a Seen) -> Vec<&'a api::Queue> {
        self.order.queues(seen)
    }

    /// A queue that is not shown must not be chosen, since keys would act on it.
    fn keep_chosen(&mut self) {
        let Some(seen) = self.seen.clone() else {
            return;
        };
        let queues = self.queues(&seen);
        let is_there = |name: &QueueName| queues.iter().any(|queue| queue.name == *name);
        if !self.chosen.as_ref().is_some_and(is_there) {
            self.chosen = queues.first().map(|queue| queue.name.clone());
        }
    }

    fn choose(&mut self, step: isize) {
        let Some(seen) = self.seen.clone() else {
            return;
        };
        if self.inside != Inside::Nothing {
            let rows = match &self.found {
                Some(Found::Jobs(jobs)) => jobs.len(),
                Some(Found::Job(job)) => inside::lines(job).len(),
                _ => 0,
            };
            let next = self.place.saturating_add_signed(step);
            self.place = next.min(rows.saturating_sub(1));
            return;
        }
        let queues = self.queues(&seen);
        let place = self.place_of(&queues).unwrap_or(0);
        let next = place.saturating_add_signed(step);
        let next = queues.get(next.min(queues.len().saturating_sub(1)));
        self.chosen = next.map(|queue| queue.name.clone());
    }

    fn place_of(&self, queues: &[&api::Queue]) -> Option<usize> {
        let chosen = self.chosen.as_ref()?;
        queues.iter().position(|queue| queue.name == *chosen)
    }

    fn pausing(&self) -> Option<Action> {
        let name = self.chosen.as_ref()?;
        let queues = &self.seen.as_ref()?.stats.queues;
        let queue = queues.iter().find(|queue| queue.name == *name)?;
        Some(if queue.paused {
            Action::Resume(queue.name.clone())
        } else {
            Action::Pause(queue.name.clone())
        })
    }

    pub(crate) fn draw(&mut self, frame: &mut Frame<'_>) {
        let Some(seen) = self.seen.clone() else {
            let text = self
                .problem
                .as_deref()
                .unwrap_or("connecting to the broker");
            return frame.render_widget(Paragraph::new(text), frame.area());
        };
        let head_lines = 4 + u16::from(self.problem.is_some());
        let [head, body, foot] = Layout::vertical([
            Constraint::Length(head_lines),
            Constraint::Min(4),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        self.head(frame, head, &seen);
        if self.inside == Inside::Nothing {
            self.panels(frame, body, &seen);
        } else {
            self.look_inside(frame, body, &seen);
        }
        frame.render_widget(self.foot(), foot);
    }

    fn head(&self, frame: &mut Frame<'_>, area: Rect, seen: &Seen) {
        let label =
            |text: &'static str| Span::styled(text, Style::new().add_modifier(Modifier::DIM));
        let leads = match seen.cluster.leader {
            Some(_) => Style::new().fg(Color::Green).add_modifier(Modifier::BOLD),
            None => bad(),
        };
        let mut lines = vec![
            Line::from(vec![
                label("leader    "),
                Span::styled(seen.leader(), leads),
            ]),
            Line::from(vec![label("jobs      "), Span::raw(seen.counts())]),
            Line::from(vec![label("rates     "), Span::raw(seen.rates())]),
        ];
        lines.push(match seen.failure() {
            Some(failure) => Line::from(vec![label("last dead "), Span::styled(failure, warn())]),
            None => Line::from(vec![label("last dead "), Span::raw("no dead jobs")]),
        });
        if let Some(problem) = &self.problem {
            let old = format!("no answer; this is {} old: {problem}", seen.since_now());
            lines.push(Line::styled(old, bad()));
        }
        frame.render_widget(Paragraph::new(lines), area);
    }

    /// Nodes, queues and, if there is room left, the jobs that died last.
    fn panels(&self, frame: &mut Frame<'_>, area: Rect, seen: &Seen) {
        let rows = |number: usize| u16::try_from(number + 3).unwrap_or(u16::MAX);
        let (nodes, queues) = (rows(seen.cluster.nodes.len()), self.queues(seen));
        let wanted = rows(queues.len());
        let [nodes, queues_height, dead] = heights(area.height, nodes, wanted);
        let dead = if seen.dead.is_empty() { 0 } else { dead };
        let queues_height = match dead {
            0 => area.height - nodes,
            _ => queues_height,
        };
        let [above, middle, below] = Layout::vertical([
            Constraint::Length(nodes),
            Constraint::Length(queues_height),
            Constraint::Length(dead),
        ])
        .areas(area);
        nodes_table(frame, above, seen);
        self.queue_table(frame, middle, seen, &queues);
        if dead > 0 {
            jobs_table(
                frame,
                below,
                seen,
                " dead jobs, newest first ",
                &seen.dead,
                None,
            );
        }
    }

    fn queue_table(&self, frame: &mut Frame<'_>, area: Rect, seen: &Seen, queues: &[&api::Queue]) {
        let mut rows = plain::queues(seen, queues).into_iter();
        let heading = Row::new(rows.next().unwrap_or_default()).add_modifier_dim();
        let styled = rows.map(|row| {
            let style = match row[1].as_str() {
                "behind" => bad(),
                "paused" => warn(),
                _ => Style::new(),
            };
            Row::new(row).style(style)
        });
        let widths = [24, 8, 8, 8, 10, 8, 10].map(Constraint::Min);
        let title = self.order.title(queues.len(), seen.stats.queues.len());
        let table = Table::new(styled, widths)
            .header(heading)
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
            .block(Block::bordered().title(title));
        let mut state = TableState::new().with_selected(self.place_of(queues));
        frame.render_stateful_widget(table, area, &mut state);
    }

    fn look_inside(&self, frame: &mut Frame<'_>, area: Rect, seen: &Seen) {
        let title = self.inside.title();
        let block = Block::bordered().title(title.clone());
        match &self.found {
            Some(Found::Jobs(jobs)) if jobs.is_empty() => {
                frame.render_widget(Paragraph::new("no jobs").block(block), area);
            }
            Some(Found::Jobs(jobs)) => {
                let place = self.place.min(jobs.len() - 1);
                jobs_table(frame, area, seen, &title, jobs, Some(place));
            }
            Some(Found::Job(job)) => {
                let lines = inside::lines(job).split_off(self.place.min(inside::lines(job).len()));
                frame.render_widget(Paragraph::new(lines).block(block), area);
            }
            Some(Found::Problem(problem)) => {
                let text = Paragraph::new(problem.as_str()).style(bad());
                frame.render_widget(text.block(block), area);
            }
            None => frame.render_widget(Paragraph::new("asking the broker").block(block), area),
        }
    }

    fn foot(&self) -> Line<'_> {
        match (&self.asked, &self.said) {
            (Some(action), _) => Line::styled(format!(" {} y or n", action.question()), warn()),
            (None, _) if self.is_typing => {
                let filter = &self.order.filter;
                Line::styled(format!(" filter: {filter}_  ⏎ keep  esc clear"), warn())
            }
            (None, Some(said)) => Line::raw(format!(" {said}")),
            (None, None) => {
                let is_first = self.inside == Inside::Nothing;
                let keys = if is_first { KEYS } else { KEYS_INSIDE };
                Line::styled(keys, Style::new().add_modifier(Modifier::DIM))
            }
        }
    }
}

/// Divides a height between nodes, queues and dead jobs. If all rows fit, all are shown; otherwise the nodes get a
/// third, and the queues the rest.
fn heights(height: u16, nodes: u16, queues: u16) -> [u16; 3] {
    let whole = nodes.saturating_add(queues);
    if whole <= height {
        let left = height - whole;
        return if left >= DEAD_ROWS_MIN {
            [nodes, queues, left]
        } else {
            [nodes, queues + left, 0]
        };
    }
    let nodes = nodes.min((height / 3).max(5)).min(height);
    [nodes, height - nodes, 0]
}

/// A table with fewer rows is not worth showing.
const DEAD_ROWS_MIN: u16 = 5;

fn nodes_table(frame: &mut Frame<'_>, area: Rect, seen: &Seen) {
    let mut rows = plain::nodes(seen).into_iter();
    let heading = Row::new(rows.next().unwrap_or_default()).add_modifier_dim();
    let widths = [24, 10, 14, 40].map(Constraint::Min);
    let all = seen.cluster.nodes.len();
    let shown = usize::from(area.height.saturating_sub(3)).min(all);
    let count = if shown < all {
        format!(", {shown} of {all}")
    } else {
        String::new()
    };
    let title = format!(" nodes of {}{count} ", seen.stats.namespace);
    let nodes = Table::new(rows.map(Row::new), widths).header(heading);
    frame.render_widget(nodes.block(Block::bordered().title(title)), area);
}

fn jobs_table(
    frame: &mut Frame<'_>,
    area: Rect,
    seen: &Seen,
    title: &str,
    jobs: &[api::Job],
    chosen: Option<usize>,
) {
    let mut rows = inside::rows(seen, jobs).into_iter();
    let heading = Row::new(rows.next().unwrap_or_default()).add_modifier_dim();
    let rows = rows.zip(jobs);
    let rows = rows.map(|(row, job)| Row::new(row).style(inside::style(job.state)));
    let widths = [
        Constraint::Max(36),
        Constraint::Length(10),
        Constraint::Max(20),
        Constraint::Length(8),
        Constraint::Length(12),
        Constraint::Fill(1),
    ];
    let table = Table::new(rows, widths)
        .header(heading)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .block(Block::bordered().title(title.to_owned()));
    let mut state = TableState::new().with_selected(chosen);
    frame.render_stateful_widget(table, area, &mut state);
}

trait Dim {
    fn add_modifier_dim(self) -> Self;
}

impl Dim for Row<'_> {
    fn add_modifier_dim(self) -> Self {
        self.style(Style::new().add_modifier(Modifier::DIM))
    }
}

impl Seen {
    fn since_now(&self) -> String {
        crate::times::duration(crate::times::between(self.at, crate::times::now()))
    }
}

fn bad() -> Style {
    Style::new().fg(Color::Red).add_modifier(Modifier::BOLD)
}

fn warn() -> Style {
    Style::new().fg(Color::Yellow)
}

#[cfg(test)]
mod tests;
