//! Rekeying, make-before-break: periodically, and when SAs expire.

use std::time::Duration;

use ipsec::{Event, SaExpired};
use sim::unique_mask;
use wire::Spi;
use xfrm::{Lifetime, Mode, SaConfig, SaDir};

use crate::site::{Generation, Lane, Site, Step};

/// Longest time that a frame may be in flight, with all faults of a wire.
const LONGEST_WAY: Duration = Duration::from_millis(50);

impl Site {
    /// Adds the next SA of a lane at the receiver, and returns its SPI.
    pub(crate) fn make_known(&mut self, lane: usize) -> u32 {
        let spi = self.next_spi;
        self.next_spi += 1;
        let config = self.sa(&self.lanes[lane], spi, self.dir(SaDir::In));
        let to = 1 - self.lanes[lane].from;
        self.world.nodes[to].datapath.ipsec.add_sa(&config, unique_mask()).unwrap();
        self.lanes[lane].generations.push(Generation { spi, step: Step::Known, since: self.world.now() });
        spi
    }

    /// Takes the next step of a rekey: the new SA is known, then used; the old one unused, then removed.
    pub(crate) fn rekey(&mut self, lane: usize) {
        let now = self.world.now();
        let generations = &self.lanes[lane].generations;
        let at = |step| generations.iter().position(|it| it.step == step);
        let is_over = |it: &Generation| it.step == Step::Unused && now.since(it.since) > LONGEST_WAY;
        let old = generations.iter().position(is_over);
        let used = generations.iter().filter(|it| it.step == Step::Used).count();
        match (at(Step::Known), at(Step::Used), old) {
            (Some(known), ..) => self.advance(lane, known),
            (None, Some(first), _) if used > 1 => self.advance(lane, first),
            (.., Some(old)) => self.forget(lane, old),
            _ if generations.len() == 1 => drop(self.make_known(lane)),
            _ => {}
        }
    }

    /// Replaces SAs as a key manager does on notification that an outbound SA is about to expire, or has expired.
    pub(crate) fn replace_expired(&mut self) {
        for from in 0..2 {
            self.held += self.world.nodes[from].datapath.ipsec.held() as u64;
            let events: Vec<Event> = self.world.nodes[from].datapath.ipsec.take_events().collect();
            assert_eq!(self.world.nodes[from].datapath.ipsec.lost_events(), 0);
            for event in events {
                let Event::SaExpired(SaExpired { hard, spi, stats, .. }) = event else { continue };
                // An expired larval SA has no SPI.
                if spi.0 == 0 {
                    continue;
                }
                let has_it = |it: &Generation| it.spi == spi.0;
                let found = self.lanes.iter().position(|lane| lane.generations.iter().any(has_it)).expect("a lane's");
                let lane = &mut self.lanes[found];
                assert_eq!(lane.from, from, "an SA that receives does not end");
                if hard {
                    let now = self.world.now();
                    let ended = lane.generations.iter_mut().find(|it| has_it(it)).expect("just found");
                    assert_eq!(ended.step, Step::Used);
                    (ended.step, ended.since) = (Step::Unused, now);
                    self.gone[from].sealed += stats.packets;
                    self.expired += 1;
                }
                if lane.generations.iter().all(|it| it.step != Step::Known) && !(hard && lane.has_used()) {
                    self.make_known(found);
                }
                if !self.lanes[found].has_used() {
                    self.rekey(found);
                }
            }
        }
    }

    /// Gives every lane an SA that does not expire.
    pub(crate) fn stay(&mut self) {
        self.lifetime = Lifetime::default();
        for lane in 0..self.lanes.len() {
            self.make_known(lane);
            while self.lanes[lane].generations.iter().any(|it| it.step == Step::Known) {
                self.rekey(lane);
            }
        }
    }

    pub(crate) fn advance(&mut self, lane: usize, generation: usize) {
        let now = self.world.now();
        let Lane { from, generations, .. } = &self.lanes[lane];
        let (from, Generation { spi, step, .. }) = (*from, &generations[generation]);
        let (spi, step) = (*spi, *step);
        let config = self.sa(&self.lanes[lane], spi, self.dir(SaDir::Out));
        let tfcpad = if config.mode == Mode::Tunnel { self.plan.tfcpad } else { 0 };
        let config = SaConfig { tfcpad, lifetime: self.lifetime, ..config };
        let ipsec = &mut self.world.nodes[from].datapath.ipsec;
        let next = match step {
            Step::Known => {
                ipsec.add_sa(&config, unique_mask()).unwrap();
                Step::Used
            }
            Step::Used => {
                let old = ipsec.remove_sa(config.dst, Spi(spi), 0).unwrap();
                self.gone[from].sealed += old.stats().packets;
                Step::Unused
            }
            Step::Unused => unreachable!("it is forgotten next"),
        };
        let generation = &mut self.lanes[lane].generations[generation];
        (generation.step, generation.since) = (next, now);
    }

    fn forget(&mut self, lane: usize, generation: usize) {
        let Lane { from, dst, generations, .. } = &mut self.lanes[lane];
        let (to, dst, old) = (1 - *from, dst.parse().unwrap(), generations.remove(generation));
        let old = self.world.nodes[to].datapath.ipsec.remove_sa(dst, Spi(old.spi), 0).unwrap();
        self.gone[to].add_received(&old.stats());
        self.rekeys += 1;
    }
}

impl Lane {
    fn has_used(&self) -> bool {
        self.generations.iter().any(|generation| generation.step == Step::Used)
    }
}
