//! What the machine can do at most, to hold the engine's figures against: the work of a gather
//! with nothing around it. Each command prints the median seconds of a batch as JSON.
//!
//! ```text
//! ringloader-limits memcpy RECORD_BYTES RECORDS BATCH BATCHES THREADS
//! ringloader-limits decode STORE BATCH BATCHES THREADS
//! ringloader-limits uring FILE RECORD_BYTES BATCH BATCHES [fixed-files] [fixed-buffers]
//! ```

mod decode;
#[cfg(target_os = "linux")]
mod ring;

use std::env;
use std::error::Error;
use std::thread;
use std::time::{Instant, SystemTime};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Batches that are not timed.
const WARMUP: usize = 5;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let seconds = match *words.as_slice() {
        ["memcpy", record_bytes, records, batch, batches, threads] => memcpy(
            record_bytes.parse()?,
            records.parse()?,
            batch.parse()?,
            batches.parse()?,
            threads.parse()?,
        ),
        ["decode", store, batch, batches, threads] => {
            decode::run(store.as_ref(), batch.parse()?, batches.parse()?, threads.parse()?)?
        }
        #[cfg(target_os = "linux")]
        ["uring", file, record_bytes, batch, batches, ref fixed @ ..] => ring::run(
            file.as_ref(),
            record_bytes.parse()?,
            batch.parse()?,
            batches.parse()?,
            fixed.contains(&"fixed-files"),
            fixed.contains(&"fixed-buffers"),
        )?,
        _ => return Err("expected memcpy, decode or uring, and their arguments".into()),
    };
    println!("{{\"seconds\": {seconds:e}}}");
    Ok(())
}

/// Copies random records into memory that was touched, each thread its part of each batch.
fn memcpy(
    record_bytes: usize,
    records: usize,
    batch: usize,
    batches: usize,
    threads: usize,
) -> f64 {
    let source = vec![1u8; record_bytes * records];
    together(threads, |number| {
        let mut random = Random(number as u64);
        let mut part = vec![0u8; record_bytes * (batch / threads)];
        time(batches, || {
            for dst in part.chunks_exact_mut(record_bytes) {
                let start = random.below(records) * record_bytes;
                dst.copy_from_slice(&source[start..start + record_bytes]);
            }
        })
    })
}

/// Runs `work` on `threads` threads at once, and gives the median of their slowest.
fn together(threads: usize, work: impl Fn(usize) -> Vec<f64> + Sync) -> f64 {
    let work = &work;
    let times: Vec<Vec<f64>> = thread::scope(|scope| {
        let started: Vec<_> =
            (0..threads).map(|number| scope.spawn(move || work(number))).collect();
        started.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
    });
    times.into_iter().map(median).fold(0.0, f64::max)
}

/// The seconds of each of `batches` calls, after some that are not counted.
fn time(batches: usize, mut batch: impl FnMut()) -> Vec<f64> {
    (0..batches + WARMUP)
        .map(|_| {
            let started = Instant::now();
            batch();
            started.elapsed().as_secs_f64()
        })
        .skip(WARMUP)
        .collect()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Knuth's MMIX generator.
struct Random(u64);

impl Random {
    fn from_clock() -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self(now.map_or(0, |time| time.as_nanos() as u64))
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.0) * limit as u128) >> 64) as usize
    }
}
