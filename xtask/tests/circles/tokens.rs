//! Tokens of Rust source, as far as names and paths need them: comments and the contents of literals are left out.

/// One token and its line, from 1.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) line: usize,
}

/// Splits source into identifiers, `::`, other characters one by one, and strings, which keep their quotes. Numbers,
/// character literals and lifetimes are left out.
pub(crate) fn tokens(text: &str) -> Vec<Token> {
    let mut scanner = Scanner { chars: text.chars().collect(), at: 0, line: 1 };
    let mut found = Vec::new();
    while let Some(c) = scanner.peek(0) {
        let line = scanner.line;
        let token = match c {
            _ if c.is_whitespace() => {
                scanner.next();
                None
            }
            '/' if scanner.peek(1) == Some('/') => {
                scanner.skip_line();
                None
            }
            '/' if scanner.peek(1) == Some('*') => {
                scanner.skip_comment();
                None
            }
            '"' => Some(scanner.string()),
            '\'' => {
                scanner.skip_quote();
                None
            }
            _ if c.is_ascii_digit() => {
                scanner.word();
                None
            }
            _ if c.is_alphabetic() || c == '_' => scanner.word_or_string(),
            ':' if scanner.peek(1) == Some(':') => {
                scanner.next();
                scanner.next();
                Some("::".to_owned())
            }
            _ => scanner.next().map(String::from),
        };
        found.extend(token.map(|text| Token { text, line }));
    }
    found
}

struct Scanner {
    chars: Vec<char>,
    at: usize,
    line: usize,
}

impl Scanner {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek(0)?;
        self.at += 1;
        self.line += usize::from(c == '\n');
        Some(c)
    }

    fn skip(&mut self, count: usize) {
        for _ in 0..count {
            self.next();
        }
    }

    fn skip_line(&mut self) {
        while self.next().is_some_and(|c| c != '\n') {}
    }

    /// Skips a block comment, with those inside of it.
    fn skip_comment(&mut self) {
        let mut depth = 0_usize;
        loop {
            match (self.next(), self.peek(0)) {
                (Some('/'), Some('*')) => {
                    self.next();
                    depth += 1;
                }
                (Some('*'), Some('/')) => {
                    self.next();
                    depth -= 1;
                    if depth == 0 {
                        return;
                    }
                }
                (None, _) => return,
                _ => {}
            }
        }
    }

    /// Skips a character literal or a lifetime.
    fn skip_quote(&mut self) {
        self.next();
        let is_literal = self.peek(0) == Some('\\') || self.peek(1) == Some('\'');
        if !is_literal {
            self.word();
            return;
        }
        while let Some(c) = self.next() {
            match c {
                '\\' => {
                    self.next();
                }
                '\'' => return,
                _ => {}
            }
        }
    }

    fn word(&mut self) -> String {
        let mut word = String::new();
        while let Some(c) = self.peek(0).filter(|&c| c.is_alphanumeric() || c == '_') {
            word.push(c);
            self.next();
        }
        word
    }

    /// An identifier, or a string with a prefix, as `r#"…"#`, `b"…"` or `c"…"`. A raw identifier loses its prefix.
    fn word_or_string(&mut self) -> Option<String> {
        let word = self.word();
        let is_prefix = matches!(word.as_str(), "r" | "b" | "br" | "c" | "cr");
        if word == "b" && self.peek(0) == Some('\'') {
            self.skip_quote();
            return None;
        }
        if !is_prefix {
            return Some(word);
        }
        let hashes = (0..).take_while(|&ahead| self.peek(ahead) == Some('#')).count();
        if self.peek(hashes) == Some('"') {
            self.skip(hashes);
            let is_raw = word.contains('r');
            return Some(if is_raw { self.raw_string(hashes) } else { self.string() });
        }
        if word == "r" && hashes == 1 {
            self.next();
            return Some(self.word());
        }
        Some(word)
    }

    fn string(&mut self) -> String {
        let mut text = String::from('"');
        self.next();
        while let Some(c) = self.next() {
            match c {
                '\\' => {
                    self.next();
                }
                '"' => break,
                _ => text.push(c),
            }
        }
        text + "\""
    }

    fn raw_string(&mut self, hashes: usize) -> String {
        let mut text = String::from('"');
        self.next();
        while let Some(c) = self.next() {
            if c == '"' && (0..hashes).all(|ahead| self.peek(ahead) == Some('#')) {
                self.skip(hashes);
                break;
            }
            text.push(c);
        }
        text + "\""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_each_kind_are_distinguished() {
        let cases: [(&str, &[&str]); 12] = [
            ("use crate::a; // crate::b", &["use", "crate", "::", "a", ";"]),
            ("/* x /* y */ z */ a /** doc */ b", &["a", "b"]),
            ("'a' 'b: '\\'' '\\u{1f}' b'x' &'static x", &[":", "&", "x"]),
            ("\"crate::a \\\" b\" c", &["\"crate::a  b\"", "c"]),
            ("r#\"a \" b\"# c r\"\\\" d", &["\"a \" b\"", "c", "\"\\\"", "d"]),
            ("b\"x\" c\"y\" br#\"z\"#", &["\"x\"", "\"y\"", "\"z\""]),
            ("r#type r b c br", &["type", "r", "b", "c", "br"]),
            ("0xffu32 1_000 1.5e3 x1", &[".", "x1"]),
            ("a::<T>::b", &["a", "::", "<", "T", ">", "::", "b"]),
            ("a: b", &["a", ":", "b"]),
            ("#[path = \"x.rs\"]", &["#", "[", "path", "=", "\"x.rs\"", "]"]),
            ("/* never closed", &[]),
        ];
        for (text, want) in cases {
            let got: Vec<String> = tokens(text).into_iter().map(|token| token.text).collect();
            assert_eq!(got, want, "{text}");
        }
    }

    #[test]
    fn lines_are_counted_through_comments_and_strings() {
        let text = "a\n/* \n */ b \"\n\" c\nr\"\n\" d // x\ne";
        let lines: Vec<(String, usize)> =
            tokens(text).into_iter().filter(|t| t.text.len() == 1).map(|t| (t.text, t.line)).collect();
        assert_eq!(lines, [("a", 1), ("b", 3), ("c", 4), ("d", 6), ("e", 7)].map(|(t, n)| (t.to_owned(), n)));
    }
}
