//! Iteration over a store: records one by one, gathered in blocks.

use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PySlice;

/// Record bytes that an iteration reads ahead.
const BLOCK_BYTES: usize = 2 << 20;
/// Records that an iteration reads ahead at most.
const BLOCK_RECORDS: usize = 1024;
/// Records of the first block where their size is not known.
const FIRST_RECORDS: usize = 16;

/// Yields the records of a store in the order of their index.
#[pyclass(frozen, module = "ringloader._ringloader")]
pub(crate) struct RecordIterator {
    store: Py<PyAny>,
    reorders: u64,
    state: Mutex<State>,
}

struct State {
    /// Records that were gathered, and the next of them to yield.
    block: Option<Py<PyAny>>,
    position: usize,
    block_len: usize,
    /// The first record of the next block, and how many to take.
    next: usize,
    take: usize,
}

impl RecordIterator {
    /// An iterator over `store`; `record_bytes` is the size of a record, or 0 if they differ.
    pub(crate) fn new(store: &Bound<'_, PyAny>, reorders: u64, record_bytes: usize) -> Self {
        let take = match record_bytes {
            0 => FIRST_RECORDS,
            bytes => (BLOCK_BYTES / bytes).clamp(1, BLOCK_RECORDS),
        };
        let state = State { block: None, position: 0, block_len: 0, next: 0, take };
        Self { store: store.clone().unbind(), reorders, state: Mutex::new(state) }
    }

    fn next_block<'py>(
        &self,
        py: Python<'py>,
        state: &mut State,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let store = self.store.bind(py);
        let length = store.len()?;
        let end = length.min(state.next.saturating_add(state.take));
        if state.next >= end {
            return Ok(None);
        }
        let slice = PySlice::new(py, state.next as isize, end as isize, 1);
        let block = store.get_item(slice)?;
        (state.block_len, state.position, state.next) = (end - state.next, 0, end);
        // Ragged records tell their size only now: take about as many bytes the next time.
        if let Ok(first) = block.get_item(0).and_then(|record| record.getattr("nbytes")) {
            let bytes: usize = first.extract()?;
            let fitting = (BLOCK_BYTES / bytes.max(1)).clamp(1, BLOCK_RECORDS);
            state.take = fitting.min(state.take * 2);
        }
        state.block = Some(block.clone().unbind());
        Ok(Some(block))
    }
}

#[pymethods]
impl RecordIterator {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let reorders: u64 = self.store.bind(py).call_method0("_reorders")?.extract()?;
        if reorders != self.reorders {
            return Err(PyRuntimeError::new_err(
                "records were deleted or compacted during the iteration",
            ));
        }
        let mut state = self.state.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        let block = match &state.block {
            Some(block) if state.position < state.block_len => block.clone_ref(py).into_bound(py),
            _ => match self.next_block(py, &mut state)? {
                Some(block) => block,
                None => return Ok(None),
            },
        };
        let record = block.get_item(state.position)?;
        state.position += 1;
        Ok(Some(record))
    }
}
