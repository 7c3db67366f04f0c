//! The screen and its keys. Holds what is shown; does nothing by itself.

use std::sync::Arc;

use ratatui::Frame;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Row, Table, TableState};

use super::act::Action;
use super::plain;
use super::seen::{Answer, Seen};

const KEYS: &str =
    " ↑↓ choose  p pause or resume  r retry dead  R ask the leader to resign  q quit";

/// What a key asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Nothing,
    Quit,
    Do(Action),
}

#[derive(Debug, Default)]
pub(crate) struct Screen {
    seen: Option<Arc<Seen>>,
    /// Why there is no news.
    problem: Option<String>,
    /// What came of the last action.
    said: Option<String>,
    /// Waits for a yes.
    asked: Option<Action>,
    table: TableState,
}

impl Screen {
    pub(crate) fn see(&mut self, answer: Option<Answer>) {
        match answer {
            Some(Ok(seen)) => {
                self.seen = Some(seen);
                self.problem = None;
            }
            Some(Err(problem)) => self.problem = Some(problem),
            None => {}
        }
        let queues = self.seen.as_ref().map_or(0, |seen| seen.stats.queues.len());
        let chosen = self.table.selected().unwrap_or(0);
        self.table
            .select((queues > 0).then(|| chosen.min(queues - 1)));
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
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Wish::Quit,
            KeyCode::Down | KeyCode::Char('j') => self.choose(1),
            KeyCode::Up | KeyCode::Char('k') => self.choose(-1),
            KeyCode::Char('p') => self.asked = self.pausing(),
            KeyCode::Char('r') => {
                let queue = self.chosen().map(|(_, queue)| queue.name.clone());
                self.asked = queue.map(Action::Retry);
            }
            KeyCode::Char('R') => self.asked = Some(Action::Resign),
            _ => {}
        }
        Wish::Nothing
    }

    fn choose(&mut self, step: isize) {
        let queues = self.seen.as_ref().map_or(0, |seen| seen.stats.queues.len());
        if let Some(chosen) = self.table.selected() {
            let next = chosen.saturating_add_signed(step);
            self.table.select(Some(next.min(queues.saturating_sub(1))));
        }
    }

    fn chosen(&self) -> Option<(usize, &tenure_client::api::Queue)> {
        let place = self.table.selected()?;
        Some((place, self.seen.as_ref()?.stats.queues.get(place)?))
    }

    fn pausing(&self) -> Option<Action> {
        let (_, queue) = self.chosen()?;
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
        let nodes = u16::try_from(seen.cluster.nodes.len()).unwrap_or(u16::MAX);
        let [head, nodes, queues, foot] = Layout::vertical([
            Constraint::Length(5),
            Constraint::Length(nodes.min(8).saturating_add(3)),
            Constraint::Min(4),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        self.head(frame, head, &seen);
        self.tables(frame, nodes, queues, &seen);
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

    fn tables(&mut self, frame: &mut Frame<'_>, above: Rect, below: Rect, seen: &Seen) {
        let mut rows = plain::nodes(seen).into_iter();
        let heading = Row::new(rows.next().unwrap_or_default()).add_modifier_dim();
        let widths = [24, 10, 14, 40].map(Constraint::Min);
        let nodes = Table::new(rows.map(Row::new), widths).header(heading);
        let title = format!(" nodes of {} ", seen.stats.namespace);
        frame.render_widget(nodes.block(Block::bordered().title(title)), above);

        let mut rows = plain::queues(seen).into_iter();
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
        let queues = Table::new(styled, widths)
            .header(heading)
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
            .block(Block::bordered().title(" queues "));
        frame.render_stateful_widget(queues, below, &mut self.table);
    }

    fn foot(&self) -> Line<'_> {
        match (&self.asked, &self.said) {
            (Some(action), _) => Line::styled(format!(" {} y or n", action.question()), warn()),
            (None, Some(said)) => Line::raw(format!(" {said}")),
            (None, None) => Line::styled(KEYS, Style::new().add_modifier(Modifier::DIM)),
        }
    }
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
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn press(screen: &mut Screen, key: char) -> Wish {
        screen.take(&Event::Key(KeyEvent::from(KeyCode::Char(key))))
    }

    fn open() -> Screen {
        let mut screen = Screen::default();
        screen.see(Some(Ok(Arc::new(super::super::seen::tests::seen()))));
        screen
    }

    fn drawn(screen: &mut Screen) -> String {
        let mut terminal = Terminal::new(TestBackend::new(110, 20)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn nothing_is_done_without_a_yes() {
        let mut screen = open();
        assert_eq!(press(&mut screen, 'R'), Wish::Nothing);
        assert!(drawn(&mut screen).contains("ask the leader to resign? y or n"));
        assert_eq!(press(&mut screen, 'n'), Wish::Nothing);
        assert_eq!(press(&mut screen, 'y'), Wish::Nothing);
        press(&mut screen, 'R');
        assert_eq!(press(&mut screen, 'y'), Wish::Do(Action::Resign));
    }

    #[test]
    fn a_key_means_the_chosen_queue() {
        let mut screen = open();
        press(&mut screen, 'p');
        let mail = tenure_client::QueueName::new("mail").unwrap();
        assert_eq!(press(&mut screen, 'y'), Wish::Do(Action::Pause(mail)));
        press(&mut screen, 'j');
        press(&mut screen, 'j');
        press(&mut screen, 'p');
        let reports = tenure_client::QueueName::new("reports").unwrap();
        assert_eq!(press(&mut screen, 'y'), Wish::Do(Action::Resume(reports)));
        assert_eq!(press(&mut screen, 'q'), Wish::Quit);
    }

    #[test]
    fn a_server_that_is_silent_is_said_and_the_last_news_stay() {
        let mut screen = Screen::default();
        assert!(drawn(&mut screen).contains("connecting to the broker"));
        screen.see(Some(Err("no server answers".to_owned())));
        assert!(drawn(&mut screen).contains("no server answers"));
        let mut screen = open();
        screen.see(Some(Err("no server answers".to_owned())));
        let drawn = drawn(&mut screen);
        assert!(
            drawn.contains("no server answers") && drawn.contains("web-1 in term 7"),
            "{drawn}"
        );
    }

    #[test]
    fn the_screen_shows_leader_nodes_queues_and_keys() {
        let drawn = drawn(&mut open());
        for expected in [
            "web-1 in term 7",
            "web-2",
            "mail",
            "behind",
            "paused",
            "submitted 2.0/s",
            "p pause or resume",
        ] {
            assert!(drawn.contains(expected), "{expected}\n{drawn}");
        }
    }
}
