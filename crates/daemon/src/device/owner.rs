//! The gateway as the owner of devices: each device that it makes has its name as alias.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use base::ShardCount;
use driver::DriverKind;
use netlink::rtnl::nums::RTM_GETLINK;

use crate::host::rtnl::{self, TunDevice};
use crate::rtnetlink::Rtnetlink;

/// The gateway of this process.
static OWNER: OnceLock<Owner> = OnceLock::new();

#[derive(Debug)]
struct Owner {
    instance: String,
    /// Whether devices stay when the gateway ends.
    keeps: bool,
    /// Whether the gateway runs: a start that fails leaves no new device behind.
    has_started: AtomicBool,
    /// Whether a device was removed to be made anew with another mode, and lost routes.
    has_remade: AtomicBool,
}

/// Sets the name of this process's gateway, once, and whether its devices stay when it ends.
pub(crate) fn set_owner(instance: &str, keeps: bool) {
    let [has_started, has_remade] = [false, false].map(AtomicBool::new);
    let owner = Owner { instance: instance.to_owned(), keeps, has_started, has_remade };
    // A process has one gateway.
    let _ = OWNER.set(owner);
}

/// Name of this process's gateway, and whether its devices stay when it ends. Without a gateway the name is empty.
pub(crate) fn owner() -> (String, bool) {
    OWNER.get().map(|owner| (owner.instance.clone(), owner.keeps)).unwrap_or_default()
}

/// Whether devices of this process stay when it ends.
pub(crate) fn keeps() -> bool {
    OWNER.get().is_some_and(|owner| owner.keeps)
}

/// Whether a device that is made now stays: that of a gateway whose start is complete.
pub(crate) fn keeps_now() -> bool {
    OWNER.get().is_some_and(|owner| owner.keeps && owner.has_started.load(Ordering::Relaxed))
}

/// Notes that the start is complete.
pub(super) fn start() {
    if let Some(owner) = OWNER.get() {
        owner.has_started.store(true, Ordering::Relaxed);
    }
}

/// The name of this process's gateway, if its devices stay.
pub(super) fn keeper() -> Option<&'static str> {
    OWNER.get().filter(|owner| owner.keeps).map(|owner| owner.instance.as_str())
}

/// Whether a device has lost its routes because it was made anew.
pub(super) fn has_remade() -> bool {
    OWNER.get().is_some_and(|owner| owner.has_remade.load(Ordering::Relaxed))
}

/// Alias of the devices of a gateway.
fn alias(instance: &str) -> String {
    format!("fatpath {instance}")
}

/// Name of the gateway that a device belongs to.
pub(crate) fn owner_of(device: &TunDevice) -> Option<&str> {
    device.alias.as_deref()?.strip_prefix("fatpath ")
}

/// TUN and TAP devices of the present network namespace.
pub(crate) fn tun_devices(kernel: &mut Rtnetlink) -> io::Result<Vec<TunDevice>> {
    let mut devices = Vec::new();
    kernel.dump(RTM_GETLINK, |message| devices.extend(rtnl::read_tun(message)))?;
    Ok(devices)
}

/// Owner of the device of a link that is about to be opened.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Prepared {
    /// Whether the device belongs to this gateway, or will be made and belong to it.
    pub(crate) is_own: bool,
    /// Whether a device of this gateway was removed, to be made anew.
    pub(crate) is_remade: bool,
}

/// Prepares the opening of a TUN or TAP link of the gateway `instance`, whose devices stay if it `keeps` them. A device that a
/// program has made beforehand belongs to no gateway. A device of this gateway with another mode is removed, as no mode can
/// be changed. A gateway without a name owns nothing.
///
/// # Errors
/// The device belongs to another gateway, or cannot be removed.
pub(crate) fn prepare(
    kernel: &mut Rtnetlink,
    (instance, keeps): (&str, bool),
    name: &str,
    (kind, shards): (&DriverKind, ShardCount),
) -> Result<Prepared, String> {
    if instance.is_empty() {
        return Ok(Prepared::default());
    }
    // Each shard has a queue.
    let (is_tap, has_many_queues) = (kind.is_ethernet(), kind.queues() > Some(1) || shards != ShardCount::ONE);
    let failed = |what: &str, err: &io::Error| format!("{name}: {what}: {err}");
    let devices = tun_devices(kernel).map_err(|err| failed("list of devices", &err))?;
    let prepared = |is_own, is_remade| Ok(Prepared { is_own, is_remade });
    let Some(device) = devices.into_iter().find(|device| device.name == name) else { return prepared(keeps, false) };
    match owner_of(&device) {
        None => prepared(false, false),
        Some(other) if other != instance => Err(format!(
            "{name}: the device belongs to the gateway {other}, and stays when that ends; \
             remove it with `fatpath down {other}`, or give the link another name."
        )),
        Some(_) if !device.is_attached && (device.is_tap, device.has_many_queues) != (is_tap, has_many_queues) => {
            kernel
                .ask(|writer, seq| rtnl::write_removal(writer, device.index, seq))
                .map_err(|err| failed("removal of the former device", &err))?;
            prepared(keeps, true)
        }
        Some(_) => prepared(true, false),
    }
}

/// Notes that the device of a link was made anew.
pub(crate) fn note_remade(name: &str) {
    if let Some(owner) = OWNER.get() {
        owner.has_remade.store(true, Ordering::Relaxed);
    }
    tracing::warn!(
        "{name}: the device is made anew for other queues or another kind; routes that were added to it by hand are gone"
    );
}

/// Marks the device with that number as the one of the gateway `instance`.
///
/// # Errors
/// The mark cannot be set.
pub(crate) fn claim(kernel: &mut Rtnetlink, instance: &str, index: u32) -> Result<(), String> {
    let mark = alias(instance);
    let asked = kernel.ask(|writer, seq| rtnl::write_alias(writer, index, &mark, seq));
    asked.map_err(|err| format!("alias \"{mark}\": {err}"))
}
