//! Making a store. It is built whole beside its place, made durable, and renamed there, so
//! there is never half a store at the path, and a failure leaves nothing behind.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

use super::open::absolute;
use super::{Mode, Options, Storage};
use crate::codec::{Codec, Dictionary};
use crate::error::{Error, Result};
use crate::file::Fs;
use crate::format::{Frontier, Header, names};
use crate::identity::Identity;

/// What a new store is made of.
pub(crate) struct Blueprint<'a> {
    pub(crate) identity: &'a Identity,
    pub(crate) codec: Codec,
    pub(crate) dictionary: Option<&'a [u8]>,
}

impl Blueprint<'_> {
    fn check(&self) -> Result<()> {
        self.identity.width().map_err(Error::InvalidArgument)?;
        match (self.codec, self.dictionary) {
            (Codec::ZstdDict, None | Some([])) => Err(Error::InvalidArgument(
                "codec 'zstd_dict' requires the bytes of a dictionary from train_dict".into(),
            )),
            (Codec::ZstdDict, Some(bytes)) => Dictionary::new(bytes.to_vec())
                .map(drop)
                .map_err(|reason| Error::InvalidArgument(format!("dict_bytes: {reason}"))),
            (_, Some(_)) => Err(Error::InvalidArgument(format!(
                "a dictionary was given, and codec '{}' has none: use codec 'zstd_dict'",
                self.codec
            ))),
            (_, None) => Ok(()),
        }
    }

    /// Every file of the new store with its contents, `meta.zr` last.
    fn files(&self) -> Vec<(String, Vec<u8>)> {
        let header = Header { frontier: Frontier::default(), codec: self.codec, reserved: [0; 15] };
        let dictionary = self.dictionary.map(|bytes| (names::DICTIONARY.into(), bytes.to_vec()));
        let mut files = vec![(names::chunk(0), Vec::new())];
        files.extend(dictionary);
        files.push((names::IDENTITY.into(), self.identity.encode()));
        files.push((names::META.into(), header.encode().to_vec()));
        files
    }
}

impl Storage {
    /// Makes a store at `path`, where there must be nothing or an empty directory, and opens it.
    pub(crate) fn create(
        path: &Path,
        blueprint: &Blueprint<'_>,
        options: &Options,
    ) -> Result<Self> {
        blueprint.check()?;
        let path = &absolute(path)?;
        check_vacant(path)?;
        let options = &Options { mode: Mode::ReadWrite, ..options.clone() };
        let fs = &options.fs;
        let made = make_parents(path, fs)?;
        let built = build(path, blueprint, options);
        if built.is_err() {
            // Newest first. What cannot be removed was never part of a store.
            for dir in made.iter().rev() {
                let _ = fs.remove_dir(dir);
            }
        }
        built
    }
}

/// Whatever is at the path, but for an empty directory, is not ours to replace: a link neither.
fn check_vacant(path: &Path) -> Result<()> {
    match path.symlink_metadata() {
        Ok(found)
            if found.is_dir() && fs::read_dir(path).is_ok_and(|mut dir| dir.next().is_none()) =>
        {
            Ok(())
        }
        Ok(_) => Err(Error::AlreadyExists { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::io("inspect", path, error)),
    }
}

/// Makes the directories above `path` that are missing and gives those it made.
fn make_parents(path: &Path, fs: &Fs) -> Result<Vec<PathBuf>> {
    let missing: Vec<_> = path.ancestors().skip(1).take_while(|dir| !dir.exists()).collect();
    let mut made = Vec::new();
    for dir in missing.into_iter().rev() {
        match fs.create_dir(dir) {
            Ok(()) => made.push(dir.to_owned()),
            // Somebody else was faster; theirs will do, and is not ours to remove.
            Err(_) if dir.is_dir() => {}
            Err(error) => {
                for dir in made.iter().rev() {
                    let _ = fs.remove_dir(dir);
                }
                return Err(error);
            }
        }
    }
    Ok(made)
}

fn build(path: &Path, blueprint: &Blueprint<'_>, options: &Options) -> Result<Storage> {
    let fs = &options.fs;
    let unnamed =
        || Error::InvalidArgument(format!("{} does not name a directory to make", path.display()));
    let (parent, _) = path.parent().zip(path.file_name()).ok_or_else(unnamed)?;
    let site = make_site(parent, fs)?;
    let files = blueprint.files();

    fill(&site, &files, fs)
        .and_then(|()| move_in(&site, path, fs))
        .inspect_err(|_| clear(&site, &files, fs))?;
    let opened = fs.sync_dir(parent).and_then(|()| Storage::open(path, options));
    match opened {
        Ok((storage, _)) => Ok(storage),
        // Somebody else has opened the store already; it is whole, and theirs.
        Err(error @ Error::Busy { .. }) => Err(error),
        Err(error) => {
            clear(path, &files, fs);
            Err(error)
        }
    }
}

fn fill(site: &Path, files: &[(String, Vec<u8>)], fs: &Fs) -> Result<()> {
    for (name, bytes) in files {
        let file = fs.create_file(&site.join(name))?;
        file.write_all_at(bytes.as_slice(), 0)?;
        file.sync()?;
    }
    fs.sync_dir(site)
}

/// Removes what was made of a store, as far as it can be removed.
fn clear(dir: &Path, files: &[(String, Vec<u8>)], fs: &Fs) {
    for (name, _) in files {
        let _ = fs.remove_file(&dir.join(name));
    }
    let _ = fs.remove_dir(dir);
}

/// Makes a directory in `parent` in which to build, under a name that nobody else uses.
fn make_site(parent: &Path, fs: &Fs) -> Result<PathBuf> {
    /// Names that are tried: others with the same process number may share the file system.
    const ATTEMPTS: u64 = 100;
    static CREATIONS: AtomicU64 = AtomicU64::new(0);
    let mut attempt = 1;
    loop {
        let number = CREATIONS.fetch_add(1, Ordering::Relaxed);
        let site = parent.join(format!(".ringloader-{}-{number}", std::process::id()));
        match fs.create_dir(&site) {
            Ok(()) => return Ok(site),
            Err(Error::Io { source, .. })
                if source.kind() == io::ErrorKind::AlreadyExists && attempt < ATTEMPTS =>
            {
                attempt += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

fn move_in(site: &Path, path: &Path, fs: &Fs) -> Result<()> {
    if cfg!(windows) && path.is_dir() {
        // Windows does not rename onto a directory, even an empty one.
        fs.remove_dir(path)?;
    }
    fs.rename(site, path).map_err(|error| match check_vacant(path) {
        Ok(()) => error,
        Err(occupied) => occupied,
    })
}
