use loom::sync::Arc;
use loom::thread;
use sync::WorkQueue;

use crate::check;

/// Task: its number, and the times that it was run.
type Task = (u8, u8);

fn run(task: &mut Task) {
    task.1 += 1;
}

/// Collects tasks until `count` have come back; those that no thread has begun are run here, if `helps`.
fn collect(queue: &WorkQueue<Task>, count: usize, helps: bool) -> Vec<Task> {
    let mut done = Vec::new();
    while done.len() < count {
        done.extend(std::iter::from_fn(|| queue.pop_done()));
        match queue.take_back().filter(|_| helps) {
            Some(mut task) => {
                run(&mut task);
                done.push(task);
            }
            None => thread::yield_now(),
        }
    }
    done.sort_unstable();
    done
}

#[test]
fn task_wakes_a_thread_that_goes_to_sleep() {
    check(|| {
        let queue = Arc::new(WorkQueue::new(2));
        let thread = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.serve(run))
        };
        queue.push((1, 0));
        queue.wake(1);
        let mut done = None;
        while done.is_none() {
            thread::yield_now();
            done = queue.pop_done();
        }
        assert_eq!(done, Some((1, 1)));
        queue.end();
        thread.join().unwrap();
    });
}

#[test]
fn each_task_is_run_once_by_a_thread_or_the_worker() {
    check(|| {
        let queue = Arc::new(WorkQueue::new(2));
        let thread = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.serve(run))
        };
        (1..3).for_each(|number| queue.push((number, 0)));
        queue.wake(2);
        assert_eq!(collect(&queue, 2, true), [(1, 1), (2, 1)]);
        queue.end();
        thread.join().unwrap();
    });
}

#[test]
fn threads_that_go_to_sleep_end() {
    check(|| {
        let queue = Arc::new(WorkQueue::new(1));
        let threads = [(); 2].map(|()| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.serve(run))
        });
        queue.end();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}
