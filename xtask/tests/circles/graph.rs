//! Circles of files: files of a crate that use each other, directly or by way of others.
//!
//! A file uses another if a path in it names an item that the other declares; re-exports are followed to the
//! declaration, and are no use by themselves. Code compiled only for tests does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::tokens::{Token, tokens};

/// Files of one crate, and what each uses of others.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    modules: Vec<Module>,
    /// Files in the order in which they were read, relative to the crate's root file.
    files: Vec<String>,
    /// For each pair of files, a line and path of the first by which the former uses the latter.
    uses: BTreeMap<(usize, usize), (usize, String)>,
}

#[derive(Debug, Default)]
struct Module {
    file: usize,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    /// Names that it declares, but for modules.
    declared: BTreeSet<String>,
    imports: Vec<Import>,
    /// Paths in its code, with their lines.
    paths: Vec<(usize, Vec<String>)>,
    /// Identifiers in its code outside of imports.
    identifiers: BTreeSet<String>,
}

/// One name that a `use` brings in.
#[derive(Debug)]
struct Import {
    line: usize,
    path: Vec<String>,
    /// Name in the module; none for a glob.
    name: Option<String>,
    is_public: bool,
}

/// Declaration that a path leads to.
enum Target {
    Module(usize),
    /// An item of a module, or one that this scanner does not see, such as a macro's.
    Item(usize),
}

/// Maximum number of re-exports that are followed.
const MAX_STEPS: usize = 16;

impl Graph {
    /// Reads a crate from its root file.
    pub(crate) fn of_crate(root: &Path) -> Self {
        let mut graph = Self::default();
        let directory = root.parent().unwrap_or_else(|| panic!("{}: no directory", root.display()));
        graph.read(root, directory, directory, None);
        graph.link();
        graph
    }

    /// Reads a module's file, whose children's files are in `directory`, and gives its number.
    fn read(&mut self, file: &Path, directory: &Path, base: &Path, parent: Option<usize>) -> usize {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let name = file.strip_prefix(base).expect("a file of the crate");
        self.files.push(name.display().to_string());
        let module = Module { file: self.files.len() - 1, parent, ..Module::default() };
        self.modules.push(module);
        let id = self.modules.len() - 1;
        let all = tokens(&text);
        let mut reader = Reader { tokens: &all, at: 0, graph: self, base };
        reader.body(id, directory);
        id
    }

    /// Finds which file each import and each path leads to.
    fn link(&mut self) {
        let mut found = Vec::new();
        for (id, module) in self.modules.iter().enumerate() {
            for import in &module.imports {
                let is_used = import.name.as_ref().is_some_and(|name| module.identifiers.contains(name));
                if (!import.is_public || is_used)
                    && let Some(target) = self.resolve(id, &import.path, 0)
                {
                    found.push((module.file, self.file_of(&target), import.line, import.path.join("::")));
                }
            }
            for (line, path) in &module.paths {
                if let Some(target) = self.resolve(id, path, 0) {
                    found.push((module.file, self.file_of(&target), *line, path.join("::")));
                }
            }
        }
        for (from, to, line, path) in found {
            if from != to {
                self.uses.entry((from, to)).or_insert((line, path));
            }
        }
    }

    fn file_of(&self, target: &Target) -> usize {
        let (Target::Module(id) | Target::Item(id)) = target;
        self.modules[*id].file
    }

    /// Declaration that `path`, read in module `from`, leads to; none outside of the crate.
    fn resolve(&self, from: usize, path: &[String], steps: usize) -> Option<Target> {
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => 0,
            "self" => from,
            "super" => self.modules[from].parent?,
            name => {
                rest = path;
                self.modules[from].children.contains_key(name).then_some(from)?
            }
        };
        while let Some((name, behind)) = rest.split_first() {
            let module = &self.modules[at];
            if name == "super" {
                at = module.parent?;
            } else if name == "self" {
                return Some(Target::Module(at));
            } else if let Some(&child) = module.children.get(name) {
                at = child;
            } else if module.declared.contains(name) {
                return Some(Target::Item(at));
            } else {
                return Some(self.reexported(at, name, behind, steps).unwrap_or(Target::Item(at)));
            }
            rest = behind;
        }
        Some(Target::Module(at))
    }

    /// Declaration of a name that module `at` has by a `use`.
    fn reexported(&self, at: usize, name: &str, behind: &[String], steps: usize) -> Option<Target> {
        if steps == MAX_STEPS {
            return None;
        }
        let module = &self.modules[at];
        let named = module.imports.iter().find(|import| import.name.as_deref() == Some(name));
        if let Some(import) = named {
            let path: Vec<String> = import.path.iter().chain(behind).cloned().collect();
            return self.resolve(at, &path, steps + 1);
        }
        module.imports.iter().filter(|import| import.name.is_none() && import.is_public).find_map(|glob| {
            let Target::Module(inside) = self.resolve(at, &glob.path, steps + 1)? else { return None };
            let path: Vec<String> =
                ["self", name].map(str::to_owned).into_iter().chain(behind.iter().cloned()).collect();
            let target = &self.modules[inside];
            let has_it = target.declared.contains(name) || target.children.contains_key(name);
            has_it.then(|| self.resolve(inside, &path, steps + 1))?
        })
    }

    /// Circles, each as its files, in order of their names.
    pub(crate) fn circles(&self) -> Vec<Vec<String>> {
        let reaches: Vec<BTreeSet<usize>> = (0..self.files.len()).map(|file| self.reached_from(file)).collect();
        let mut seen = BTreeSet::new();
        let mut circles = Vec::new();
        for file in 0..self.files.len() {
            let circle: BTreeSet<usize> =
                reaches[file].iter().copied().filter(|&other| reaches[other].contains(&file)).collect();
            if circle.len() > 1 && seen.insert(circle.clone()) {
                let mut names: Vec<String> = circle.iter().map(|&file| self.files[file].clone()).collect();
                names.sort();
                circles.push(names);
            }
        }
        circles.sort();
        circles
    }

    /// Files that `file` uses, directly or not.
    fn reached_from(&self, file: usize) -> BTreeSet<usize> {
        let (mut reached, mut left) = (BTreeSet::new(), vec![file]);
        while let Some(at) = left.pop() {
            for &(_, to) in self.uses.range((at, 0)..(at + 1, 0)).map(|(pair, _)| pair) {
                if reached.insert(to) {
                    left.push(to);
                }
            }
        }
        reached
    }

    /// Uses between files of a circle, as `a.rs:line uses b.rs: path`.
    pub(crate) fn uses_within(&self, circle: &[String]) -> Vec<String> {
        let is_in = |file: usize| circle.contains(&self.files[file]);
        let within = self.uses.iter().filter(|((from, to), _)| is_in(*from) && is_in(*to));
        within
            .map(|((from, to), (line, path))| format!("{}:{line} uses {}: {path}", self.files[*from], self.files[*to]))
            .collect()
    }
}

/// Walks the tokens of one file.
struct Reader<'a> {
    tokens: &'a [Token],
    at: usize,
    graph: &'a mut Graph,
    base: &'a Path,
}

impl Reader<'_> {
    fn word(&self, ahead: usize) -> &str {
        self.tokens.get(self.at + ahead).map_or("", |token| token.text.as_str())
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at).map_or(0, |token| token.line)
    }

    /// Reads a module's body up to its closing brace, or the file's end.
    fn body(&mut self, id: usize, directory: &Path) {
        let mut depth = 0_usize;
        let mut is_public = false;
        let mut path_attribute = None;
        while self.at < self.tokens.len() {
            match self.word(0) {
                "#" => {
                    let attribute = self.attribute();
                    if is_for_tests(&attribute) {
                        self.skip_item();
                    } else if let [name, equals, value] = &attribute[..]
                        && (name == "path" && equals == "=")
                    {
                        path_attribute = Some(value.trim_matches('"').to_owned());
                    }
                    continue;
                }
                "{" => depth += 1,
                "}" if depth == 0 => return,
                "}" => depth -= 1,
                "pub" => {
                    is_public = true;
                    self.at += 1;
                    if self.word(0) == "(" {
                        self.skip_group();
                    }
                    continue;
                }
                "mod" if self.word(2) == ";" => {
                    let file = path_attribute.take();
                    self.child_file(id, directory, file);
                    self.at += 3;
                    is_public = false;
                    continue;
                }
                "mod" if self.word(2) == "{" => {
                    let name = self.word(1).to_owned();
                    let file = self.graph.modules[id].file;
                    let child = Module { file, parent: Some(id), ..Module::default() };
                    self.graph.modules.push(child);
                    let child = self.graph.modules.len() - 1;
                    self.graph.modules[id].children.insert(name.clone(), child);
                    self.at += 3;
                    self.body(child, &directory.join(name));
                }
                "use" if self.word(1) != "<" => {
                    self.at += 1;
                    self.import(id, &mut Vec::new(), is_public);
                }
                "struct" | "enum" | "union" | "trait" | "type" | "fn" | "const" | "static" if depth == 0 => {
                    let name = self.word(if self.word(1) == "mut" { 2 } else { 1 }).to_owned();
                    self.graph.modules[id].declared.insert(name);
                }
                "macro_rules" if self.word(1) == "!" => {
                    let name = self.word(2).to_owned();
                    self.graph.modules[id].declared.insert(name);
                }
                word if is_identifier(word) => {
                    let is_inside = self.at > 0 && self.tokens[self.at - 1].text == "::";
                    if !is_inside {
                        self.path(id);
                        is_public = false;
                        continue;
                    }
                }
                _ => {}
            }
            is_public = false;
            self.at += 1;
        }
    }

    /// Reads an attribute and gives the tokens in it.
    fn attribute(&mut self) -> Vec<String> {
        self.at += 1;
        if self.word(0) == "!" {
            self.at += 1;
        }
        let start = self.at;
        self.skip_group();
        let inner = self.tokens.get(start + 1..self.at.saturating_sub(1)).unwrap_or_default();
        inner.iter().map(|token| token.text.clone()).collect()
    }

    /// Skips a group of brackets that begins here.
    fn skip_group(&mut self) {
        let mut depth = 0_usize;
        while self.at < self.tokens.len() {
            match self.word(0) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth = depth.saturating_sub(1),
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return;
            }
        }
    }

    /// Skips the item, field or statement behind an attribute.
    fn skip_item(&mut self) {
        while self.word(0) == "#" {
            self.attribute();
        }
        if self.word(0) == "pub" {
            self.at += 1;
            if self.word(0) == "(" {
                self.skip_group();
            }
        }
        const ITEMS: [&str; 12] = [
            "mod",
            "fn",
            "struct",
            "enum",
            "impl",
            "trait",
            "const",
            "static",
            "type",
            "unsafe",
            "extern",
            "macro_rules",
        ];
        let (is_item, is_use) = (ITEMS.contains(&self.word(0)), self.word(0) == "use");
        while self.at < self.tokens.len() {
            match self.word(0) {
                ";" => {
                    self.at += 1;
                    return;
                }
                "," if !is_item && !is_use => return,
                "}" | ")" | "]" => return,
                "{" if !is_use => {
                    self.skip_group();
                    return;
                }
                "(" | "[" | "{" => self.skip_group(),
                _ => self.at += 1,
            }
        }
    }

    fn child_file(&mut self, id: usize, directory: &Path, file: Option<String>) {
        let name = self.word(1).to_owned();
        let (file, inside) = match file {
            // Files of its children are beside it.
            Some(file) => {
                let file = directory.join(file);
                let inside = file.parent().unwrap_or(directory).to_owned();
                (file, inside)
            }
            None => file_of_module(directory, &name),
        };
        let child = self.graph.read(&file, &inside, self.base, Some(id));
        self.graph.modules[id].children.insert(name, child);
    }

    /// Reads a tree of imports behind the path `prefix`.
    fn import(&mut self, id: usize, prefix: &mut Vec<String>, is_public: bool) {
        let (before, line) = (prefix.len(), self.line());
        if self.word(0) == "::" {
            self.at += 1;
        }
        loop {
            match self.word(0) {
                "{" => {
                    self.at += 1;
                    while self.at < self.tokens.len() && self.word(0) != "}" {
                        self.import(id, prefix, is_public);
                        if self.word(0) == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    break;
                }
                "*" => {
                    self.at += 1;
                    let import = Import { line, path: prefix.clone(), name: None, is_public };
                    self.graph.modules[id].imports.push(import);
                    break;
                }
                word => {
                    let word = word.to_owned();
                    self.at += 1;
                    prefix.push(word.clone());
                    if self.word(0) == "::" {
                        self.at += 1;
                        continue;
                    }
                    let mut name = if word == "self" { prefix.iter().rev().nth(1).cloned() } else { Some(word) };
                    if self.word(0) == "as" {
                        name = Some(self.word(1).to_owned());
                        self.at += 2;
                    }
                    let import = Import { line, path: prefix.clone(), name, is_public };
                    self.graph.modules[id].imports.push(import);
                    break;
                }
            }
        }
        prefix.truncate(before);
    }

    /// Reads a path in code.
    fn path(&mut self, id: usize) {
        let line = self.line();
        let mut path = vec![self.word(0).to_owned()];
        self.at += 1;
        while self.word(0) == "::" && is_identifier(self.word(1)) {
            path.push(self.word(1).to_owned());
            self.at += 2;
        }
        let module = &mut self.graph.modules[id];
        module.identifiers.insert(path[0].clone());
        if path.len() > 1 {
            module.paths.push((line, path));
        }
    }
}

/// File of a child module, and the directory of its own children.
fn file_of_module(directory: &Path, name: &str) -> (PathBuf, PathBuf) {
    let inside = directory.join(name);
    let file = directory.join(format!("{name}.rs"));
    let file = if file.exists() { file } else { inside.join("mod.rs") };
    (file, inside)
}

/// Tells an attribute that has its item compiled for tests alone.
fn is_for_tests(attribute: &[String]) -> bool {
    let has = |word: &str| attribute.iter().any(|token| token == word);
    attribute.first().is_some_and(|name| name == "cfg") && has("test") && !has("not") && !has("any")
        || attribute == ["test"]
}

fn is_identifier(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '_')
}
