//! `fatpath-fleet init`: identity of a fleet's store, and access to its keys by roles and users.
//!
//! A user of etcd is the common name of a certificate, and has the role of the same name. Names begin with the fleet's, so that fleets of
//! one store do not share them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, value_parser};
use client::CliError;
use fleet::Key;
use rustls::crypto::ring;

use crate::authority::{Authority, Bearer};
use crate::config::AgentConfig;
use crate::etcd::{Access, CallError, Endpoint, Etcd, Grant, TlsFiles};
use crate::mover::Mover;

/// User and role that may do all.
const ROOT: &str = "root";

/// Beginning of the keys of all fleets, and the first key behind them.
const ALL_FLEETS: &str = "/fatpath/v1/";
const END_OF_FLEETS: &str = "/fatpath/v10";

#[derive(Args, Clone, Debug)]
pub(crate) struct InitArgs {
    /// File of a node; with root's certificate, unless --ca has it
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// Node that gets a role and a user; the file's node if none is named
    #[arg(long = "node", value_name = "NAME")]
    nodes: Vec<String>,
    /// Directory of a CA. Missing certificates of root, mover, reader, nodes and members are made in it
    #[arg(long, value_name = "DIR")]
    ca: Option<PathBuf>,
    /// Days for which certificates are valid that are made
    #[arg(long, value_name = "DAYS", requires = "ca", default_value_t = 365, value_parser = value_parser!(u32).range(1..=3650))]
    days: u32,
    /// Makes certificates, and does not connect to the store
    #[arg(long, requires = "ca")]
    files_only: bool,
}

/// Role of etcd, with the user of the same name.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Role {
    name: String,
    /// Beginning of the names of the user's files.
    file: String,
    grants: Vec<Grant>,
}

/// Roles of a fleet.
fn roles(fleet: &str, nodes: &[String]) -> Vec<Role> {
    let root = Key::root(fleet);
    let read = || Grant { access: Access::Read, key: root.clone(), is_prefix: true };
    let write = |key: String, is_prefix| Grant { access: Access::Write, key, is_prefix };
    let role = |kind: &str, grants| Role { name: format!("{fleet}/{kind}"), file: kind.replace('/', "-"), grants };
    let mut roles = vec![role("reader", vec![read()]), role("mover", vec![read(), write(format!("{root}ila/"), true)])];
    for node in nodes {
        let own = [Key::Node(node.clone()), Key::Alive(node.clone())].map(|key| write(key.text(fleet), false));
        let routes = write(format!("{root}vrf/{node}/"), true);
        roles.push(role(&format!("node/{node}"), [read()].into_iter().chain(own).chain([routes]).collect()));
    }
    roles
}

fn failed(err: &CallError) -> CliError {
    CliError::failed(err.to_string())
}

fn say(line: &str) -> Result<(), CliError> {
    client::print(format!("{line}\n").as_bytes())
}

/// Carries out the command.
///
/// # Errors
/// A file cannot be made, no member answers, or one refuses.
pub(crate) fn run(args: &InitArgs) -> Result<(), CliError> {
    let mut config = AgentConfig::read(&args.config)?;
    let fleet = config.settings.fleet.clone();
    let nodes = if args.nodes.is_empty() { vec![config.settings.node.clone()] } else { args.nodes.clone() };
    for node in &nodes {
        let key = Key::Node(node.clone());
        if Key::parse(&fleet, key.text(&fleet).as_bytes()) != Ok(key) {
            return Err(CliError::failed(format!("Invalid name of a node {node:?}")));
        }
    }
    let roles = roles(&fleet, &nodes);
    if let Some(dir) = &args.ca {
        let files = Arc::new(make_certificates(dir, args.days, &config, &roles)?);
        config.endpoints = config.endpoints.iter().map(|endpoint| endpoint.with_files(&files)).collect();
    }
    if args.files_only {
        return Ok(());
    }
    let endpoints = config.endpoints.clone();
    let unlimited = why_unlimited(&endpoints)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    let runtime = runtime.map_err(|err| CliError::system("start a thread", &err))?;
    runtime.block_on(async {
        let mover = Mover::connect(config).await?;
        say(if mover.init().await? { "store: made its identity" } else { "store: has its identity" })?;
        drop(mover);
        match unlimited {
            Some(why) => say(&format!("access: not limited, {why}")),
            None => set_up_access(&endpoints, &fleet, &roles).await,
        }
    })
}

/// Makes missing certificates, and returns those of root.
fn make_certificates(dir: &Path, days: u32, config: &AgentConfig, roles: &[Role]) -> Result<TlsFiles, CliError> {
    if let Some(endpoint) = config.endpoints.iter().find(|endpoint| endpoint.tls().is_none()) {
        return Err(CliError::failed(format!("Invalid address of a member {endpoint}: --ca is for https:// alone")));
    }
    let mut authority = Authority::open(dir, &config.settings.fleet, days)?;
    let mut make_all = || {
        authority.make(ROOT, Bearer::User(ROOT))?;
        for role in roles {
            authority.make(&role.file, Bearer::User(&role.name))?;
        }
        for endpoint in &config.endpoints {
            authority.make(&format!("member-{}", endpoint.host()), Bearer::Member(endpoint.host()))?;
        }
        Ok(())
    };
    let outcome = make_all();
    let root = TlsFiles::new(authority.cacert(), Some(authority.files(ROOT)));
    let made = authority.into_made();
    for path in &made {
        say(&format!("{}: made", path.display()))?;
    }
    outcome?;
    if made.is_empty() {
        say(&format!("{}: has all certificates", dir.display()))?;
    }
    Ok(root)
}

/// Reason for which there can be no users; `None` if the files have root's certificate.
///
/// # Errors
/// The certificate is another user's.
fn why_unlimited(endpoints: &[Endpoint]) -> Result<Option<&'static str>, CliError> {
    let Some(files) = endpoints.first().and_then(Endpoint::tls) else {
        return Ok(Some("as members are reached by http://"));
    };
    let Some(pair) = files.pair() else { return Ok(Some("as there is no certificate of root")) };
    match files.user().map_err(CliError::failed)? {
        Some(user) if user == ROOT => Ok(None),
        user => Err(CliError::failed(format!(
            "{}: roles and users are made by {ROOT}, and this certificate is of {}",
            pair.cert.display(),
            user.as_deref().unwrap_or("no user")
        ))),
    }
}

/// Makes roles and users that are missing, and enables authentication.
async fn set_up_access(endpoints: &[Endpoint], fleet: &str, roles: &[Role]) -> Result<(), CliError> {
    let mut etcd = connect(endpoints).await?;
    let is_enabled = etcd.is_auth_enabled().await.map_err(|err| failed(&err))?;
    if !is_enabled {
        check_before(&etcd, endpoints, fleet).await?;
    }
    let mut changes = 0;
    let existing = etcd.roles().await.map_err(|err| failed(&err))?;
    for role in roles {
        changes += make_role(&etcd, &existing, role).await?;
    }
    let users = etcd.users().await.map_err(|err| failed(&err))?;
    for role in roles {
        changes += make_user(&etcd, &users, &role.name, &role.name, None).await?;
    }
    if !is_enabled {
        check_users(&etcd).await?;
        enable(&mut etcd, endpoints, fleet, &existing, &users).await?;
        changes += 1;
    }
    if changes == 0 { say("access: nothing was missing") } else { Ok(()) }
}

/// Connects to the first member that answers.
async fn connect(endpoints: &[Endpoint]) -> Result<Etcd, CliError> {
    let mut last = String::new();
    for endpoint in endpoints {
        match Etcd::connect(endpoint).await {
            Ok(etcd) => return Ok(etcd),
            Err(err) => last = format!("{endpoint}: {err}"),
        }
    }
    Err(CliError::failed(last))
}

/// Makes a role, or what it lacks. Returns the number of changes.
async fn make_role(etcd: &Etcd, existing: &[String], role: &Role) -> Result<usize, CliError> {
    let Role { name, grants, .. } = role;
    let mut changes = 0;
    if !existing.contains(name) {
        etcd.add_role(name).await.map_err(|err| failed(&err))?;
        say(&format!("role {name}: made"))?;
        changes += 1;
    }
    let (lacking, more) = etcd.lacking(name, grants).await.map_err(|err| failed(&err))?;
    for grant in lacking {
        etcd.grant_keys(name, &grant).await.map_err(|err| failed(&err))?;
        let verb = if grant.access == Access::Read { "reads" } else { "writes" };
        let all = if grant.is_prefix { "…" } else { "" };
        say(&format!("role {name}: {verb} {}{all}", grant.key))?;
        changes += 1;
    }
    if more != 0 {
        say(&format!("role {name}: has {more} permissions that are not of `init`"))?;
    }
    Ok(changes)
}

/// Makes a user, or gives it the role that it lacks. Returns the number of changes.
async fn make_user(
    etcd: &Etcd,
    existing: &[String],
    user: &str,
    role: &str,
    password: Option<&str>,
) -> Result<usize, CliError> {
    let mut changes = 0;
    if !existing.iter().any(|name| name == user) {
        etcd.add_user(user, password).await.map_err(|err| failed(&err))?;
        say(&format!("user {user}: made"))?;
        changes += 1;
    }
    let has = etcd.roles_of(user).await.map_err(|err| failed(&err))?;
    if !has.iter().any(|name| name == role) {
        etcd.grant_role(user, role).await.map_err(|err| failed(&err))?;
        say(&format!("user {user}: has role {role}"))?;
        changes += 1;
    }
    Ok(changes)
}

fn others(key: &str) -> CliError {
    CliError::failed(format!(
        "Others use this store, for one the key {key:?}, and would need users: see `etcdctl auth enable`"
    ))
}

/// Checks that each fleet and each node that the store has also has its users.
async fn check_users(etcd: &Etcd) -> Result<(), CliError> {
    let users = etcd.users().await.map_err(|err| failed(&err))?;
    let mut fleets = BTreeMap::new();
    let mut from = ALL_FLEETS.to_owned();
    while let Some(key) = etcd.first_key(&from, END_OF_FLEETS).await.map_err(|err| failed(&err))? {
        let key = String::from_utf8_lossy(&key).into_owned();
        let fleet = key.strip_prefix(ALL_FLEETS).and_then(|rest| rest.split_once('/')).map(|(fleet, _)| fleet);
        let fleet = fleet.ok_or_else(|| others(&key))?;
        let (found, _) = etcd.prefix(&Key::nodes(fleet), 0).await.map_err(|err| failed(&err))?;
        let nodes = found.iter().filter_map(|found| match Key::parse(fleet, &found.key) {
            Ok(Key::Node(name)) => Some(name),
            _ => None,
        });
        fleets.insert(fleet.to_owned(), nodes.collect());
        // The key behind all of this fleet's: `0` follows `/`.
        from = format!("{ALL_FLEETS}{fleet}0");
    }
    let lacking = without_user(&fleets, &users);
    if lacking.is_empty() {
        return Ok(());
    }
    Err(CliError::failed(format!(
        "Clients without a user would be locked out: {}: name nodes by --node, and run `init` for each fleet",
        lacking.join(", ")
    )))
}

/// Nodes and fleets of a store that lack users.
fn without_user(fleets: &BTreeMap<String, Vec<String>>, users: &[String]) -> Vec<String> {
    let has = |fleet: &str, kind: &str| users.contains(&format!("{fleet}/{kind}"));
    let mut lacking = Vec::new();
    for (fleet, nodes) in fleets {
        if !has(fleet, "mover") {
            lacking.push(format!("fleet {}", fleet.escape_debug()));
        }
        let nodes = nodes.iter().filter(|node| !has(fleet, &format!("node/{node}")));
        lacking.extend(nodes.map(|node| format!("node {node} of fleet {}", fleet.escape_debug())));
    }
    lacking
}

/// Checks that authentication would lock no client out.
async fn check_before(etcd: &Etcd, endpoints: &[Endpoint], fleet: &str) -> Result<(), CliError> {
    if let Some(key) = etcd.other_key(ALL_FLEETS).await.map_err(|err| failed(&err))? {
        let key = String::from_utf8_lossy(&key).into_owned();
        return Err(others(&key));
    }
    for endpoint in endpoints {
        let Some(files) = endpoint.tls() else { continue };
        let anonymous = endpoint.with_files(&Arc::new(files.without_pair()));
        let Ok(open) = Etcd::connect(&anonymous).await else { continue };
        if open.get(&Key::Meta.text(fleet)).await.is_ok() {
            return Err(CliError::failed(format!(
                "{endpoint}: takes clients without a certificate: start it with --client-cert-auth and --trusted-ca-file"
            )));
        }
    }
    Ok(())
}

/// Enables authentication, and disables it again unless root's certificate is proved: a member answers to it, and none refuses it.
async fn enable(
    etcd: &mut Etcd,
    endpoints: &[Endpoint],
    fleet: &str,
    roles: &[String],
    users: &[String],
) -> Result<(), CliError> {
    // A password that is lost once this function returns.
    let mut bits = [0; 24];
    ring::default_provider().secure_random.fill(&mut bits).map_err(|_| CliError::failed("no random numbers"))?;
    let password: String = bits.iter().map(|byte| format!("{byte:02x}")).collect();
    if !roles.iter().any(|role| role == ROOT) {
        etcd.add_role(ROOT).await.map_err(|err| failed(&err))?;
        say("role root: made")?;
    }
    let is_new = !users.iter().any(|user| user == ROOT);
    // Without an answer authentication may be enabled all the same.
    let outcome = match make_user(etcd, users, ROOT, ROOT, Some(&password)).await {
        Ok(_) => match etcd.enable_auth().await {
            Ok(()) => verdict(&ask_members(endpoints, fleet).await),
            Err(err) => Err(err.to_string()),
        },
        Err(err) => Err(err.messages()),
    };
    match outcome {
        Ok(unchecked) => {
            for member in unchecked {
                say(&format!("{member}: not checked; start it with --client-cert-auth"))?;
            }
            say("authentication: enabled")
        }
        Err(why) => {
            let undone = match undo(etcd, endpoints, &password, is_new).await {
                Ok(()) => "authentication is disabled again".to_owned(),
                Err(err) if is_new => {
                    format!("authentication cannot be disabled ({err}): {ROOT} has the password {password} for that")
                }
                Err(err) => format!("authentication cannot be disabled ({err}): it needs the password of {ROOT}"),
            };
            Err(CliError::failed(format!("{why}; {undone}")))
        }
    }
}

/// Answers of all members to root's certificate.
async fn ask_members(endpoints: &[Endpoint], fleet: &str) -> Vec<(String, Result<(), CallError>)> {
    let mut answers = Vec::new();
    for endpoint in endpoints {
        let answer = match Etcd::connect(endpoint).await {
            Ok(member) => member.get(&Key::Meta.text(fleet)).await.map(drop),
            Err(err) => Err(err),
        };
        answers.push((endpoint.to_string(), answer));
    }
    answers
}

/// Members that were not checked: one that is away has the flags that it has when it is back.
///
/// # Errors
/// A member takes no user from root's certificate, or none has answered.
fn verdict(answers: &[(String, Result<(), CallError>)]) -> Result<Vec<String>, String> {
    let mut unchecked = Vec::new();
    for (member, answer) in answers {
        match answer {
            Ok(()) => {}
            Err(err @ CallError::Refused { .. }) => {
                return Err(format!(
                    "{member}: takes no user from a certificate ({err}): start it with --client-cert-auth"
                ));
            }
            Err(err) => unchecked.push(format!("{member}: {err}")),
        }
    }
    if unchecked.len() < answers.len() {
        return Ok(unchecked);
    }
    Err(format!("no member has answered to the certificate of {ROOT} ({})", unchecked.join(", ")))
}

/// Disables authentication by the first member that answers, and deletes the user root if this program has made it: the next run would not
/// know its password.
async fn undo(etcd: &mut Etcd, endpoints: &[Endpoint], password: &str, is_new: bool) -> Result<(), CallError> {
    let mut outcome = disable(etcd, password, is_new).await;
    for endpoint in endpoints {
        if matches!(outcome, Ok(()) | Err(CallError::Refused { .. })) {
            break;
        }
        if let Ok(mut other) = Etcd::connect(endpoint).await {
            outcome = disable(&mut other, password, is_new).await;
        }
    }
    outcome
}

async fn disable(etcd: &mut Etcd, password: &str, is_new: bool) -> Result<(), CallError> {
    match etcd.disable_auth(password).await {
        Err(CallError::Refused { text, .. }) if text.contains("authentication is not enabled") => {}
        outcome => outcome?,
    }
    if is_new { etcd.delete_user(ROOT).await } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_is_limited_by_roots_certificate_alone() {
        assert!(why_unlimited(&[Endpoint::parse("http://127.0.0.1:1", None).unwrap()]).unwrap().is_some());
        let why = |files| why_unlimited(&[Endpoint::parse("https://127.0.0.1:1", Some(&Arc::new(files))).unwrap()]);
        assert!(why(TlsFiles::new("ca.pem".into(), None)).unwrap().is_some());
        let dir = std::env::temp_dir().join(format!("fatpath-fleet-init-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let mut authority = Authority::open(&dir, "f", 1).unwrap();
        for (name, bearer) in [
            ("root", Bearer::User("root")),
            ("mover", Bearer::User("f/mover")),
            ("member", Bearer::Member("127.0.0.1")),
        ] {
            authority.make(name, bearer).unwrap();
            let limited = why(TlsFiles::new(authority.cacert(), Some(authority.files(name))));
            assert_eq!(limited.is_ok_and(|why| why.is_none()), name == "root", "{name}");
        }
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn authentication_stays_if_one_answers_and_none_refuses() {
        let refused = || Err(CallError::Refused { code: 3, text: "user name is empty".to_owned() });
        let lost = || Err(CallError::Lost("no answer".to_owned()));
        let of = |answers: Vec<Result<(), CallError>>| {
            let members = answers.into_iter().enumerate().map(|(number, answer)| (format!("m{number}"), answer));
            verdict(&members.collect::<Vec<_>>())
        };
        assert_eq!(of(vec![Ok(()), Ok(())]), Ok(Vec::new()));
        assert_eq!(of(vec![lost(), Ok(())]), Ok(vec!["m0: no answer".to_owned()]));
        let why = of(vec![lost(), Ok(()), refused()]).unwrap_err();
        assert!(why.starts_with("m2: takes no user from a certificate"), "{why}");
        let why = of(vec![lost(), lost()]).unwrap_err();
        assert_eq!(why, "no member has answered to the certificate of root (m0: no answer, m1: no answer)");
    }

    #[test]
    fn node_and_fleet_without_user_are_named() {
        let nodes = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let fleets = [("f".to_owned(), nodes(&["a", "b"])), ("g".to_owned(), nodes(&["a"]))].into();
        let users = nodes(&["f/mover", "f/reader", "f/node/a"]);
        assert_eq!(without_user(&fleets, &users), ["node b of fleet f", "fleet g", "node a of fleet g"]);
        let users = nodes(&["f/mover", "f/node/a", "f/node/b", "g/mover", "g/node/a"]);
        assert_eq!(without_user(&fleets, &users), nodes(&[]));
    }

    #[test]
    fn roles_have_keys_of_their_own() {
        let roles = roles("f", &["a".to_owned(), "ab".to_owned()]);
        let names: Vec<_> = roles.iter().map(|role| (role.name.as_str(), role.file.as_str())).collect();
        let want = [("f/reader", "reader"), ("f/mover", "mover"), ("f/node/a", "node-a"), ("f/node/ab", "node-ab")];
        assert_eq!(names, want);
        let written = |at: usize| -> Vec<_> {
            let grants = roles[at].grants.iter().filter(|grant| grant.access == Access::Write);
            grants.map(|grant| (grant.key.as_str(), grant.is_prefix)).collect()
        };
        assert_eq!(written(0), []);
        assert_eq!(written(1), [("/fatpath/v1/f/ila/", true)]);
        let own = [("/fatpath/v1/f/node/a", false), ("/fatpath/v1/f/alive/a", false), ("/fatpath/v1/f/vrf/a/", true)];
        assert_eq!(written(2), own);
    }
}
