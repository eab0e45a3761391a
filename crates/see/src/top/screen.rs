//! State of the screen: the chosen table, its order and filter, and the effect of keys.

use std::time::{Duration, Instant};

use super::tables::{LineKind, Table, TableLine, Tables, shown};

/// Table that is shown.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum View {
    Links,
    Tunnels,
    Drops,
    Workers,
}

/// Key of the user.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Key {
    Char(char),
    Enter,
    Escape,
    Backspace,
    Up,
    Down,
    PageUp,
    PageDown,
    /// Ctrl-C.
    Interrupt,
}

/// Style of a line.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Style {
    Plain,
    Head,
    Bad,
    Dim,
}

/// Line of the screen, as wide as that.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Line {
    pub(crate) text: String,
    pub(crate) style: Style,
}

/// State of the screen.
#[derive(Debug)]
pub(crate) struct Screen {
    /// Name of the gateway.
    name: String,
    tables: Tables,
    /// Time of the tables.
    at: Instant,
    /// Reason for which there is no newer one.
    failure: Option<String>,
    view: View,
    by_rate: bool,
    filter: String,
    /// Whether keys are the filter's.
    is_editing: bool,
    /// Number of lines that are scrolled away.
    scrolled: usize,
    /// Number of lines that a page has.
    page: usize,
}

/// Longest filter.
const MAX_FILTER: usize = 64;

/// Age above which what is shown is said to be old.
const OLD: Duration = Duration::from_secs(3);

impl Screen {
    pub(crate) fn new(name: String, tables: Tables) -> Self {
        Self {
            name,
            tables,
            at: Instant::now(),
            failure: None,
            view: View::Links,
            by_rate: true,
            filter: String::new(),
            is_editing: false,
            scrolled: 0,
            page: 1,
        }
    }

    /// Shows new tables.
    pub(crate) fn update(&mut self, now: Instant, tables: Tables) {
        self.tables = tables;
        self.at = now;
        self.failure = None;
    }

    /// Keeps the tables, as the gateway does not answer.
    pub(crate) fn fail(&mut self, why: String) {
        self.failure = Some(why);
    }

    /// Effect of a key. Returns whether it ends the program.
    pub(crate) fn key(&mut self, key: Key) -> bool {
        if key == Key::Interrupt {
            return true;
        }
        if self.is_editing {
            match key {
                Key::Enter => self.is_editing = false,
                Key::Escape => {
                    self.is_editing = false;
                    self.filter.clear();
                }
                Key::Backspace => drop(self.filter.pop()),
                Key::Char(c) if self.filter.len() < MAX_FILTER => self.filter.extend(c.to_lowercase()),
                _ => {}
            }
            self.scrolled = 0;
            return false;
        }
        let mut show = |view| {
            self.view = view;
            self.scrolled = 0;
        };
        match key {
            Key::Char('q') => return true,
            Key::Char('l') => show(View::Links),
            Key::Char('t') => show(View::Tunnels),
            Key::Char('d') => show(View::Drops),
            Key::Char('w') => show(View::Workers),
            Key::Char('s') => self.by_rate = !self.by_rate,
            Key::Char('/') => self.is_editing = true,
            Key::Escape => self.filter.clear(),
            Key::Up => self.scrolled = self.scrolled.saturating_sub(1),
            Key::Down => self.scrolled += 1,
            Key::PageUp => self.scrolled = self.scrolled.saturating_sub(self.page),
            Key::PageDown => self.scrolled += self.page,
            _ => {}
        }
        false
    }

    fn table(&self) -> &Table {
        match self.view {
            View::Links => &self.tables.links,
            View::Tunnels => &self.tables.tunnels,
            View::Drops => &self.tables.drops,
            View::Workers => &self.tables.workers,
        }
    }

    /// Lines of a screen of this size.
    pub(crate) fn lines(&mut self, now: Instant, columns: usize, rows: usize) -> Vec<Line> {
        let mut lines = vec![(format!("{}  {}", shown(&self.name), self.tables.title), Style::Head)];
        lines.extend(self.state(now));
        let table = self.table();
        let mut of_table = table.lines(&table.sorted(self.by_rate, &self.filter)).into_iter();
        // The head stays.
        let head = of_table.next();
        lines.extend(head.map(styled));
        let rest: Vec<TableLine> = of_table.collect();
        // The line of keys is the last one.
        self.page = rows.saturating_sub(lines.len() + 1).max(1);
        self.scrolled = self.scrolled.min(rest.len().saturating_sub(self.page));
        lines.extend(rest.into_iter().skip(self.scrolled).take(self.page).map(styled));
        lines.truncate(rows.saturating_sub(1));
        lines.resize(rows.saturating_sub(1), (String::new(), Style::Plain));
        lines.push((self.keys(), Style::Head));
        let fit = |(text, style): (String, Style)| {
            let text: String = text.chars().chain(std::iter::repeat(' ')).take(columns).collect();
            Line { text, style }
        };
        lines.into_iter().map(fit).collect()
    }

    /// Line about an answer that is missing.
    fn state(&self, now: Instant) -> Option<(String, Style)> {
        let age = now.saturating_duration_since(self.at);
        let why = self.failure.as_deref().unwrap_or("the gateway does not answer");
        let is_old = self.failure.is_some() || age > OLD;
        is_old.then(|| (format!("as of {} s ago: {}", age.as_secs(), shown(why)), Style::Bad))
    }

    fn keys(&self) -> String {
        if self.is_editing {
            return format!("/{}_  Enter keeps the filter, Escape clears it", shown(&self.filter));
        }
        let key = |view, word: &str| if self.view == view { word.to_uppercase() } else { word.to_owned() };
        let views = [(View::Links, "l links"), (View::Tunnels, "t tunnels"), (View::Drops, "d drops")];
        let mut text: String = views.map(|(view, word)| key(view, word) + "  ").concat();
        text += &key(View::Workers, "w workers");
        text += if self.by_rate { "  s by rate" } else { "  s by name" };
        text += "  / filter  q quit";
        if !self.filter.is_empty() {
            text += &format!("  [{}]", shown(&self.filter));
        }
        text
    }
}

fn styled(line: TableLine) -> (String, Style) {
    let style = match line.kind {
        LineKind::Head => Style::Head,
        LineKind::Plain => Style::Plain,
        LineKind::Bad => Style::Bad,
        LineKind::Note => Style::Dim,
    };
    (line.text, style)
}

#[cfg(test)]
mod tests {
    use super::super::tables::Row;
    use super::*;

    fn screen(rows: usize) -> Screen {
        let row = |at: usize| Row {
            cells: vec![format!("link{at}"), "up".to_owned()],
            rate: at as f64,
            is_bad: false,
            notes: Vec::new(),
        };
        let links =
            Table { name: "links", head: &["link", "state"], rows: (0..rows).map(row).collect(), none: "no links" };
        Screen::new("left".to_owned(), Tables { title: "fatpath 0.1.0".to_owned(), links, ..Tables::default() })
    }

    fn texts(screen: &mut Screen, columns: usize, rows: usize) -> Vec<String> {
        let lines = screen.lines(screen.at, columns, rows);
        assert!(lines.iter().all(|line| line.text.chars().count() == columns), "{lines:?}");
        lines.into_iter().map(|line| line.text.trim_end().to_owned()).collect()
    }

    #[test]
    fn lines_fill_each_size_of_a_screen() {
        let mut screen = screen(9);
        let keys = "L LINKS  t tunnels  d drops  w workers  s by rate  / filter  q quit";
        let want = ["left  fatpath 0.1.0", "link   state", "link8     up", "link7     up", keys];
        assert_eq!(texts(&mut screen, 80, 5), want);
        for (columns, rows) in [(1, 1), (80, 24), (200, 50), (7, 3), (300, 2)] {
            let lines = texts(&mut screen, columns, rows);
            assert_eq!(lines.len(), rows, "{columns} x {rows}");
        }
        assert!(texts(&mut screen, 80, 0).len() <= 1);
    }

    #[test]
    fn keys_scroll_filter_and_end() {
        let mut screen = screen(9);
        let first = |screen: &mut Screen| texts(screen, 80, 5)[2].clone();
        assert_eq!(first(&mut screen), "link8     up");
        for (key, want) in [
            (Key::Down, "link7     up"),
            (Key::PageDown, "link5     up"),
            (Key::Up, "link6     up"),
            (Key::PageUp, "link8     up"),
            (Key::PageUp, "link8     up"),
            (Key::Char('s'), "link0     up"),
        ] {
            assert!(!screen.key(key));
            assert_eq!(first(&mut screen), want, "{key:?}");
        }
        assert!((0..20).all(|_| !screen.key(Key::PageDown)));
        assert_eq!(first(&mut screen), "link7     up", "the last page is full");
        for key in [Key::Char('/'), Key::Char('K'), Key::Char('q'), Key::Backspace, Key::Char('3')] {
            assert!(!screen.key(key));
        }
        assert_eq!(texts(&mut screen, 80, 5)[4], "/k3_  Enter keeps the filter, Escape clears it");
        assert!(!screen.key(Key::Enter));
        assert_eq!(first(&mut screen), "link3     up");
        assert!(!screen.key(Key::Escape));
        assert_eq!(first(&mut screen), "link0     up");
        for view in ['t', 'd', 'w', 'l'] {
            assert!(!screen.key(Key::Char(view)));
        }
        assert!(screen.key(Key::Char('q')));
        assert!(screen.key(Key::Interrupt));
    }

    #[test]
    fn gateway_that_is_silent_is_shown_with_the_age_of_its_answer() {
        let mut screen = screen(1);
        let line = |screen: &mut Screen, seconds| {
            screen.lines(screen.at + Duration::from_secs(seconds), 80, 5)[1].text.trim_end().to_owned()
        };
        assert_eq!(line(&mut screen, 1), "link   state");
        assert_eq!(line(&mut screen, 4), "as of 4 s ago: the gateway does not answer");
        screen.fail("no\u{1b}[2J gateway".to_owned());
        assert_eq!(line(&mut screen, 1), "as of 1 s ago: no\u{fffd}[2J gateway");
        screen.update(screen.at, Tables::default());
        assert_eq!(line(&mut screen, 1), "", "it answers again");
    }
}
