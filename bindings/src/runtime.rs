//! The process's engine as Python sees it, and dictionary training.

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use ringloader_engine::codec;
use ringloader_engine::runtime::{self, Backend, Config};

use crate::errors::{ToPython, detached};

/// Set how the engine of this process will be made; call it before the first batch is gathered or appended.
///
/// Parameters
/// ----------
/// workers : int, optional
///     Threads that help with large batches. Default: one for each core that the process may use, as far as its affinity
///     mask, its share by ``LOCAL_RANK`` and ``LOCAL_WORLD_SIZE``, and its control group's quota go. With 0 or 1 every
///     batch is gathered by the thread that asks for it.
/// pin : bool, optional
///     Whether each worker stays on one core. Default: yes.
/// io : {"auto", "uring", "pread", "mmap"}, optional
///     How to read. Default: ``"auto"``, which copies records of chunks that are in memory from a mapping of the file,
///     and reads the others through io_uring, or through pread where io_uring cannot be had.
/// depth : int, optional
///     Reads that each thread has under way through io_uring at most. Default: 256.
///
/// What is not given stays as an earlier call has set it, or comes from ``RINGLOADER_WORKERS``, ``RINGLOADER_PIN``
/// (0 or 1), ``RINGLOADER_IO`` and ``RINGLOADER_DEPTH``.
///
/// Raises
/// ------
/// RuntimeError
///     If the engine is running already.
/// ValueError, TypeError
///     For a value that means nothing.
#[pyfunction]
#[pyo3(signature = (workers=None, pin=None, io=None, depth=None))]
pub(crate) fn configure(
    py: Python<'_>,
    workers: Option<&Bound<'_, PyAny>>,
    pin: Option<bool>,
    io: Option<&str>,
    depth: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let workers = workers.map(|workers| count("workers", workers)).transpose()?;
    let depth = depth.map(|depth| count("depth", depth)).transpose()?;
    let io = io.map(|name| Backend::from_name(name).to_python(py)).transpose()?;
    runtime::configure(Config { workers, pin, io, depth }).to_python(py)
}

/// A number of things, which has no sign; what is too large for it is refused like what is not
/// allowed.
fn count<'py, T>(name: &str, number: &Bound<'py, PyAny>) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    number.extract().map_err(|error: PyErr| {
        if error.is_instance_of::<PyOverflowError>(number.py()) {
            return PyValueError::new_err(format!("{name}={number} is out of range"));
        }
        PyTypeError::new_err(format!("{name}={number} is not an integer"))
    })
}

/// What is running in this process, and why.
///
/// Returns
/// -------
/// dict
///     ``io``, how stores are read unless they were opened otherwise; ``io_reason``, why; ``ring_refused``, why a thread
///     had to do without io_uring, or None; ``mapping``, when records are copied from mapped files; ``depth``; ``workers``;
///     ``pinned``; ``cores``, which the process may use; ``local_rank``, this process's number and how many share the
///     machine, if a launcher says so, or None; ``pool_idle_bytes``, batch memory kept for the next batch.
#[pyfunction]
pub(crate) fn engine_info(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let info = detached(py, runtime::info)?;
    let dict = PyDict::new(py);
    dict.set_item("io", info.io.name())?;
    dict.set_item("io_reason", info.io_reason)?;
    dict.set_item("ring_refused", info.ring_refused)?;
    dict.set_item("mapping", info.mapping)?;
    dict.set_item("depth", info.depth)?;
    dict.set_item("workers", info.workers)?;
    dict.set_item("pinned", info.pinned)?;
    dict.set_item("cores", info.cores)?;
    dict.set_item("local_rank", info.local_rank)?;
    dict.set_item("pool_idle_bytes", info.pool_idle_bytes)?;
    Ok(dict)
}

/// Train a dictionary of at most `size` bytes on samples that lie one behind the other.
#[pyfunction]
pub(crate) fn train_dictionary<'py>(
    py: Python<'py>,
    samples: &Bound<'py, PyBytes>,
    lengths: Vec<usize>,
    size: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    if lengths.is_empty() {
        return Err(PyValueError::new_err("train_dict needs at least one record"));
    }
    let samples = samples.as_bytes();
    let trained = detached(py, || codec::train_dictionary(samples, &lengths, size))?;
    Ok(PyBytes::new(py, &trained))
}
