//! x
use libtest_mimic::Arguments;
use system::*;
fn main() {
    let trials = vec![trial("boot", &[Need::Namespaces, Need::Tun, Need::UML], || {
        let w = Netns::new("w")?;
        let mut uml = interop::Uml::boot(&w, &["p0"])?;
        w.sh("ip addr add 10.9.0.1/24 dev p0")?;
        println!("{}", uml.sh("ip addr add 10.9.0.2/24 dev eth0; ip link; cat modules.log; lsmod")?);
        w.sh(&ping_script("10.9.0.2".parse()?, PING_SIZES))?;
        uml.sh(&ping_script("10.9.0.1".parse()?, PING_SIZES))?;
        Ok(())
    })];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
