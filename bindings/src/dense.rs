//! `DenseStore`: batches are one stacked array.

use std::path::PathBuf;

use numpy::{PyArrayDescr, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};
use ringloader_engine::DenseStore as Engine;
use ringloader_engine::codec::Codec;
use ringloader_engine::pool::Buffer;
use ringloader_engine::runtime::Backend;
use ringloader_engine::storage::{Mode, Options};

use crate::array::{self, Memory};
use crate::dtype::{from_identity, given_dtype, to_identity};
use crate::errors::{ToPython, detached};
use crate::handle::{Handle, bytes_of, path_of};
use crate::index::{Selection, select};
use crate::iteration::RecordIterator;

/// Records of one dtype and one shape.
///
/// Made by `DenseStore.create` and `DenseStore.open`.
#[pyclass(frozen, weakref, module = "ringloader")]
pub(crate) struct DenseStore {
    handle: Handle<Engine>,
    dtype: Py<PyArrayDescr>,
    item_shape: Vec<u64>,
}

crate::handle::common_methods!(DenseStore, Engine);

#[pymethods]
impl DenseStore {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        Err(PyTypeError::new_err("use DenseStore.open(...) or DenseStore.create(...)"))
    }

    /// Make a store and open it for reading and writing.
    ///
    /// Parameters
    /// ----------
    /// path : path-like
    ///     The store's directory: nothing, or an empty directory, must be there. Missing parents are made.
    /// dtype : dtype-like
    ///     The element type: anything with bytes of its own, structured and `ml_dtypes` types included.
    /// `item_shape` : sequence of int
    ///     The shape of a record; ``()`` for scalars.
    /// codec : {"zstd", "raw", "`zstd_dict`"}
    ///     ``raw`` keeps records as they are; ``zstd`` compresses each at level 3; ``zstd_dict`` compresses each at
    ///     level 19 against a dictionary, for small records that resemble each other.
    /// `dict_bytes` : bytes-like, optional
    ///     The dictionary from `train_dict`; required by ``zstd_dict``.
    ///
    /// Raises
    /// ------
    /// `ZrecordError`
    ///     With code -12 if there is something at the path, -2 if the file system refuses. Nothing is left behind.
    /// `ValueError`, `TypeError`
    ///     For a dtype, shape, codec or dictionary that no store can have.
    #[classmethod]
    #[pyo3(signature = (path, dtype, item_shape, codec="zstd", dict_bytes=None))]
    fn create(
        cls: &Bound<'_, PyType>,
        #[pyo3(from_py_with = path_of)] path: PathBuf,
        dtype: &Bound<'_, PyAny>,
        item_shape: Vec<i64>,
        codec: &str,
        dict_bytes: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let py = cls.py();
        let dtype = given_dtype(dtype)?;
        let identity = to_identity(&dtype)?;
        let shape = item_shape.iter().map(|dim| u64::try_from(*dim)).collect::<Result<Vec<_>, _>>();
        let item_shape = shape.map_err(|_| {
            PyValueError::new_err(format!("item_shape {item_shape:?} has a negative dimension"))
        })?;
        let codec = Codec::from_name(codec).to_python(py)?;
        let dictionary = dict_bytes.map(bytes_of).transpose()?;
        let handle = Handle::new(py, path, &Options::default(), |path, options| {
            Engine::create(path, identity, &item_shape, codec, dictionary.as_deref(), options)
        })?;
        Ok(Self { handle, dtype: dtype.unbind(), item_shape })
    }

    /// Open a store.
    ///
    /// Parameters
    /// ----------
    /// path : path-like
    ///     The store's directory.
    /// mode : {"r+", "r"}
    ///     ``"r+"`` reads and writes and excludes all other handles; ``"r"`` reads and shares the store with other
    ///     readers, in this process and others.
    /// io : {"auto", "uring", "pread", "mmap"}
    ///     The way its bytes are read; ``"auto"`` is what `engine_info` says.
    ///
    /// Raises
    /// ------
    /// `FileNotFoundError`
    ///     If there is nothing at the path.
    /// `ZrecordError`
    ///     With code -13 if another handle excludes this one, -8 if the files are not a whole dense store, -2 if
    ///     they cannot be read.
    #[classmethod]
    #[pyo3(signature = (path, mode="r+", io="auto"))]
    fn open(
        cls: &Bound<'_, PyType>,
        #[pyo3(from_py_with = path_of)] path: PathBuf,
        mode: &str,
        io: &str,
    ) -> PyResult<Self> {
        let py = cls.py();
        let mode = Mode::from_name(mode).to_python(py)?;
        let io = Backend::from_name(io).to_python(py)?;
        let options = Options { mode, io, ..Options::default() };
        let handle = Handle::new(py, path, &options, Engine::open)?;
        let store = handle.store().to_python(py)?;
        let dtype = from_identity(py, store.dtype())
            .map_err(|cause| crate::handle::bad_identity(py, &handle.path, cause))?;
        let item_shape = store.item_shape().to_vec();
        Ok(Self { handle, dtype: dtype.unbind(), item_shape })
    }

    /// The shape of a record: a tuple of ints.
    #[getter]
    fn item_shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.item_shape)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let shape = self.item_shape(py)?;
        self.describe(py, &format!("item_shape={shape}, "))
    }

    /// Append records and return the index of the first.
    ///
    /// Parameters
    /// ----------
    /// records : array-like, ``(batch, *item_shape)``
    ///     At least one record, of exactly the store's dtype.
    ///
    /// Returns
    /// -------
    /// int
    ///     The index of the first record. When this returns, gathers see the batch and the death of the process loses
    ///     none of it; `sync` makes it outlive a power loss.
    ///
    /// Raises
    /// ------
    /// `ValueError`
    ///     For another dtype or shape, no records, or a store that is closed or open for reading.
    /// `ZrecordError`
    ///     With code -5 if the store is full, -2 if the file system refuses. Nothing is appended then.
    fn append(&self, py: Python<'_>, records: &Bound<'_, PyAny>) -> PyResult<u64> {
        let store = self.handle.store().to_python(py)?;
        let records = self.rows(records)?;
        let bytes = array::span(&records)?;
        detached(py, || store.append(bytes))
    }

    /// One record, ``(*item_shape)``, or a batch, ``(n, *item_shape)``.
    ///
    /// Parameters
    /// ----------
    /// index : int, slice, or sequence or array of int or of bool
    ///     Negative numbers count from the end. An int gives one record, everything else a set of records in the order
    ///     in which they are named, repeated ones included.
    ///
    /// Raises
    /// ------
    /// `ZrecordError`
    ///     With code -3 for an index out of range (an `IndexError` too), -7 or -8 for a damaged record, naming it, -2 if
    ///     a read fails.
    /// IndexError
    ///     For an index of another kind, or a mask that is not as long as the store.
    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        index: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match self.select(py, index)? {
            Selection::Many(indices) => self.batch(py, &indices),
            Selection::One(index) => {
                let buffer = self.fetch(py, &[index])?;
                let record = Memory::of_buffer(py, buffer)?.array(
                    self.dtype.bind(py),
                    0,
                    &self.item_shape,
                )?;
                // A record without axes is a scalar, as in numpy.
                if self.item_shape.is_empty() { record.get_item(()) } else { Ok(record) }
            }
        }
    }

    /// Gather a batch, optionally into memory of the caller.
    ///
    /// Parameters
    /// ----------
    /// idx : int, slice, or sequence or array of int or of bool
    ///     As for ``store[idx]``, but an int is a batch of one.
    /// out : ndarray, ``(n, *item_shape)``, optional
    ///     A C-contiguous writable array of the store's dtype (over pinned memory, say) to gather into. After an error
    ///     its contents mean nothing.
    ///
    /// Returns
    /// -------
    /// ndarray, ``(n, *item_shape)``
    ///     `out` if it was given; otherwise a new array whose memory serves another batch when it is dropped.
    ///
    /// Raises
    /// ------
    /// `ZrecordError`
    ///     With code -3 for an index out of range (an `IndexError` too), -7 or -8 for a damaged record, naming it, -2 if
    ///     a read fails.
    /// IndexError
    ///     For an index of another kind, or a mask that is not as long as the store.
    /// `ValueError`
    ///     If `out` is not such an array.
    #[pyo3(signature = (idx, out=None))]
    fn gather<'py>(
        &self,
        py: Python<'py>,
        idx: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let indices = self.select(py, idx)?.into_indices();
        let Some(out) = out else { return self.batch(py, &indices) };
        let target = self.check_out(out, indices.len())?;
        let store = self.handle.store().to_python(py)?;
        let memory = array::span_mut(target)?;
        detached(py, || store.gather_into(&indices, memory))?;
        Ok(out.clone())
    }

    /// The batch of records `idx`: `gather`, under the name that data set protocols call.
    fn __getitems__<'py>(
        &self,
        py: Python<'py>,
        idx: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.gather(py, idx, None)
    }

    /// Yields every record in the order of the indices, gathered in blocks.
    ///
    /// Raises `RuntimeError` if records are deleted or compacted meanwhile.
    fn __iter__(slf: &Bound<'_, Self>) -> PyResult<RecordIterator> {
        let this = slf.get();
        this.handle.check_open()?;
        let bytes = this.handle.store().to_python(slf.py())?.record_bytes();
        Ok(RecordIterator::new(slf.as_any(), this._reorders(slf.py())?, bytes))
    }
}

impl DenseStore {
    fn fetch(&self, py: Python<'_>, indices: &[u64]) -> PyResult<Buffer> {
        let store = self.handle.store().to_python(py)?;
        detached(py, || store.gather(indices))
    }

    fn batch<'py>(&self, py: Python<'py>, indices: &[u64]) -> PyResult<Bound<'py, PyAny>> {
        let buffer = self.fetch(py, indices)?;
        let shape = self.batch_shape(indices.len());
        let dtype = self.dtype.bind(py);
        if buffer.is_empty() {
            return array::empty(dtype, &shape);
        }
        Memory::of_buffer(py, buffer)?.array(dtype, 0, &shape)
    }

    fn batch_shape(&self, records: usize) -> Vec<u64> {
        std::iter::once(records as u64).chain(self.item_shape.iter().copied()).collect()
    }

    /// The records as one contiguous array, `(batch, *item_shape)`.
    fn rows<'py>(&self, records: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
        let py = records.py();
        let mut rows = array::as_array(py, records)?;
        if rows.ndim() == 0 && self.item_shape.is_empty() {
            rows = rows.call_method1("reshape", (1,))?.cast_into()?;
        }
        let dtype = self.dtype.bind(py);
        if rows.shape().first() == Some(&0) {
            let path = self.handle.path.display();
            return Err(PyValueError::new_err(format!("append to {path}: there are no records")));
        }
        if !rows.dtype().eq(dtype)? {
            return Err(PyValueError::new_err(format!(
                "append to {}: dtype {} is not the store's {dtype}",
                self.handle.path.display(),
                rows.dtype()
            )));
        }
        let shape: Vec<u64> = rows.shape().iter().map(|dim| *dim as u64).collect();
        if shape.is_empty() || shape[1..] != self.item_shape[..] {
            return Err(PyValueError::new_err(format!(
                "append to {}: shape {} is not (batch, *{})",
                self.handle.path.display(),
                PyTuple::new(py, &shape)?,
                self.item_shape(py)?
            )));
        }
        array::contiguous(py, &rows)
    }

    fn check_out<'a, 'py>(
        &self,
        out: &'a Bound<'py, PyAny>,
        records: usize,
    ) -> PyResult<&'a Bound<'py, PyUntypedArray>> {
        let py = out.py();
        let wanted = PyTuple::new(py, self.batch_shape(records))?;
        let dtype = self.dtype.bind(py);
        let refuse = |found: String| {
            PyValueError::new_err(format!(
                "out must be a C-contiguous writable array of shape {wanted} and dtype {dtype}, \
                 and it is {found}"
            ))
        };
        let array = out.cast::<PyUntypedArray>().map_err(|_| refuse(out.get_type().to_string()))?;
        let shape = PyTuple::new(py, array.shape())?;
        if !shape.eq(&wanted)? || !array.dtype().eq(dtype)? {
            return Err(refuse(format!("of shape {shape} and dtype {}", array.dtype())));
        }
        if !array::is_writable_contiguous(array) {
            return Err(refuse("not contiguous or not writable".into()));
        }
        Ok(array)
    }
}
