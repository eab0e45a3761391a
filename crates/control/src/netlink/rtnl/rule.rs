//! `RTM_*RULE`: in which order tables are asked. It is the one that Linux begins with, and cannot be changed.

use super::*;

/// Length of `struct fib_rule_hdr`.
const LEN: usize = 12;

/// Priority and table of each rule, by family.
const V4: [(u32, u32); 3] = [(0, RT_TABLE_LOCAL), (32766, RT_TABLE_MAIN), (32767, RT_TABLE_DEFAULT)];
const V6: [(u32, u32); 2] = [(0, RT_TABLE_LOCAL), (32766, RT_TABLE_MAIN)];

pub(super) fn dump<H: Host>(request: &Request<'_>, family: u8) -> Result<Dump<Rtnl<H>>, Error> {
    if request.strict {
        let (header, rest) = fixed::<LEN>(request)
            .map_err(|_| Error::text(errno::EINVAL, "Invalid header for fib rule dump request"))?;
        if header[1..] != [0; LEN - 1] {
            return Err(Error::text(errno::EINVAL, "Invalid values in header for fib rule dump request"));
        }
        if !rest.is_empty() {
            return Err(Error::text(errno::EINVAL, "Invalid data after header in fib rule dump request"));
        }
    }
    let v4 = V4.iter().map(|rule| (AF_INET, *rule)).filter(move |_| family != AF_INET6);
    let v6 = V6.iter().map(|rule| (AF_INET6, *rule)).filter(move |_| family != AF_INET);
    let rules: Vec<_> = v4.chain(v6).enumerate().collect();
    let mut last = None;
    Ok(Box::new(move |_: &mut Rtnl<H>, part| {
        let left = rules.iter().copied().skip(last.map_or(0, |last| last + 1));
        Ok(write_each(part, &mut last, left, |part, _, (family, (priority, table))| {
            part.message(RTM_NEWRULE, |w| {
                w.fixed(&[family, 0, 0, 0, table as u8, 0, 0, FR_ACT_TO_TBL]);
                w.fixed(&[0; 4]);
                w.put_u32(FRA_TABLE, table);
                w.put_u32(FRA_SUPPRESS_PREFIXLEN, u32::MAX);
                w.put_u8(FRA_PROTOCOL, RTPROT_KERNEL);
                if priority != 0 {
                    w.put_u32(FRA_PRIORITY, priority);
                }
            })
        }))
    }))
}
