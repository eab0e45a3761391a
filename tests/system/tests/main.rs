//! Tests of the program with the host's kernel on either side.

use libtest_mimic::Arguments;

fn main() {
    libtest_mimic::run(&Arguments::from_args(), vec![]).exit();
}
