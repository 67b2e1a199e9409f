//! Index forms: what may stand in `store[...]`, made into record numbers.

use std::path::Path;

use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PySlice};
use ringloader_engine::Error;

use crate::array;
use crate::errors::to_python;

/// What an index selects.
pub(crate) enum Selection {
    /// One record, to be given as itself.
    One(u64),
    /// A set of records, to be given as a batch.
    Many(Vec<u64>),
}

impl Selection {
    pub(crate) fn into_indices(self) -> Vec<u64> {
        match self {
            Self::One(index) => vec![index],
            Self::Many(indices) => indices,
        }
    }
}

/// What `index` selects of `length` records; negative numbers count from the end.
pub(crate) fn select(index: &Bound<'_, PyAny>, length: u64, path: &Path) -> PyResult<Selection> {
    let within = Within { length, path };
    if let Ok(slice) = index.cast::<PySlice>() {
        return within.slice(slice);
    }
    if let Ok(array) = index.cast::<PyUntypedArray>() {
        return within.array(array, index);
    }
    if index.is_instance_of::<PyInt>() && !index.is_instance_of::<PyBool>() {
        return within.scalar(index);
    }
    // A number of some other kind, numpy's or an object with __index__ alone; what has a length
    // or an array form is asked for that first.
    let py = index.py();
    let is_container = index.hasattr("__len__")? || index.hasattr("__array__")?;
    if !is_container && !index.is_instance_of::<PyBool>() && index.hasattr("__index__")? {
        return within.scalar(&index.call_method0("__index__")?);
    }
    within.array(&array::as_array(py, index).map_err(|_| unsupported(index))?, index)
}

struct Within<'a> {
    length: u64,
    path: &'a Path,
}

impl Within<'_> {
    fn scalar(&self, index: &Bound<'_, PyAny>) -> PyResult<Selection> {
        let number: i128 = index.extract().unwrap_or(i128::MAX);
        self.wrap(index.py(), number).map(Selection::One)
    }

    fn slice(&self, slice: &Bound<'_, PySlice>) -> PyResult<Selection> {
        let length = isize::try_from(self.length).unwrap_or(isize::MAX);
        let bounds = slice.indices(length)?;
        let start = bounds.start as u64;
        let step = bounds.step.unsigned_abs() as u64;
        let count = bounds.slicelength as u64;
        let up = bounds.step > 0;
        let at = |i: u64| if up { start + i * step } else { start - i * step };
        Ok(Selection::Many((0..count).map(at).collect()))
    }

    /// What `array` selects, which `given` was made into.
    fn array(
        &self,
        array: &Bound<'_, PyUntypedArray>,
        given: &Bound<'_, PyAny>,
    ) -> PyResult<Selection> {
        let py = array.py();
        let kind = array.dtype().kind();
        match (array.ndim(), kind) {
            (0, b'i' | b'u') => self.scalar(&array.call_method0("item")?),
            (1, b'i') => {
                let numbers = array::copy_i64(array)?;
                self.wrap_all(py, numbers.into_iter().map(i128::from))
            }
            (1, b'u') => {
                let numbers = array::copy_u64(array)?;
                self.wrap_all(py, numbers.into_iter().map(i128::from))
            }
            (1, b'b') => self.mask(array),
            // numpy makes an empty list an array of floats.
            (1, b'f') if array.is_empty() => Ok(Selection::Many(Vec::new())),
            (0 | 1, _) => Err(unsupported(given)),
            (axes, _) => Err(PyIndexError::new_err(format!(
                "an index array must have one axis and this one has {axes}"
            ))),
        }
    }

    fn mask(&self, mask: &Bound<'_, PyUntypedArray>) -> PyResult<Selection> {
        let bytes = array::copy_bool(mask)?;
        if bytes.len() as u64 != self.length {
            return Err(PyIndexError::new_err(format!(
                "a mask of {} values cannot select from {} records of {}",
                bytes.len(),
                self.length,
                self.path.display()
            )));
        }
        let set = (0..).zip(bytes).filter(|(_, byte)| *byte != 0);
        Ok(Selection::Many(set.map(|(index, _)| index).collect()))
    }

    fn wrap_all(&self, py: Python<'_>, numbers: impl Iterator<Item = i128>) -> PyResult<Selection> {
        numbers.map(|number| self.wrap(py, number)).collect::<PyResult<_>>().map(Selection::Many)
    }

    fn wrap(&self, py: Python<'_>, number: i128) -> PyResult<u64> {
        let length = i128::from(self.length);
        let wrapped = if number < 0 { number.saturating_add(length) } else { number };
        if (0..length).contains(&wrapped) {
            return Ok(wrapped as u64);
        }
        let (path, index, length) = (self.path.to_owned(), number, self.length);
        Err(to_python(py, Error::IndexOutOfRange { path, index, length }))
    }
}

fn unsupported(index: &Bound<'_, PyAny>) -> PyErr {
    let kind = index.get_type();
    let name = kind.name().map_or_else(|_| "this".into(), |name| name.to_string());
    let dtype = index.getattr("dtype").map(|dtype| format!(" of {dtype}")).unwrap_or_default();
    PyIndexError::new_err(format!(
        "a store is indexed by integers, slices, or sequences and arrays of integers or of bools; \
         not by {name}{dtype}"
    ))
}
