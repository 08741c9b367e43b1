//! Times the cases with criterion: `cargo bench -p toolway-benches`, or a part: `-- framing`.

use criterion::Criterion;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    for case in cases::all() {
        criterion.bench_function(case.name, |bencher| {
            let mut body = (case.setup)();
            bencher.iter(&mut body);
        });
    }
    criterion.final_summary();
}
