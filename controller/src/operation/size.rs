//! Computes the size of a volume. The requested size is rounded up to a size that the backend
//! supports; the result never exceeds the requested limit.

use super::support;
use crate::backend::{Sizes, Usage};
use belay_server::call::Failure;
use belay_server::request::CapacityRange;
use belay_server::size::Exact;

/// Returns the minimum size of a volume for this usage, in bytes.
pub(super) fn smallest(usage: &Usage, sizes: Sizes) -> u64 {
    let needed = match usage {
        Usage::Block => sizes.min,
        Usage::Filesystem(fs_type) => support::smallest(fs_type).unwrap_or(sizes.min),
    };
    needed.max(sizes.min).next_multiple_of(sizes.step)
}

/// Returns the size of a new volume in bytes. If the request specifies no size, uses `default`.
///
/// # Errors
/// Returns `Range` if there is no size within the limits.
pub(super) fn of_new(
    range: Option<CapacityRange>,
    default: u64,
    usage: &Usage,
    sizes: Sizes,
) -> Result<u64, Failure> {
    let (required, limit) = bounds(range);
    let requested = match required {
        0 => default.min(limit - limit % sizes.step),
        required => required,
    };
    rounded(requested.max(smallest(usage, sizes)), limit, sizes)
}

/// Returns the size in bytes of a copy of a source that has `taken_over` bytes. If the request
/// specifies no size, uses the size of the source.
///
/// # Errors
/// Returns `Range` if there is no size within the limits, or if the requested size is too small.
pub(super) fn of_copy(
    range: Option<CapacityRange>,
    taken_over: u64,
    usage: &Usage,
    sizes: Sizes,
) -> Result<u64, Failure> {
    let (required, limit) = bounds(range);
    let requested = if required == 0 { taken_over } else { required };
    let bytes = rounded(requested.max(smallest(usage, sizes)), limit, sizes)?;
    if bytes >= taken_over {
        return Ok(bytes);
    }
    Err(Failure::range(format!(
        "capacity_range.required_bytes: {}, but the source has {}; request at least that",
        Exact(required),
        Exact(taken_over)
    )))
}

/// Returns the size after an expansion, in bytes; the current size if it is large enough.
///
/// # Errors
/// Returns `Range` if there is no size within the limits.
pub(super) fn of_grown(bytes: u64, range: CapacityRange, sizes: Sizes) -> Result<u64, Failure> {
    let (required, limit) = bounds(Some(range));
    if bytes > limit {
        return Err(Failure::range(format!(
            "capacity_range.limit_bytes: {}, but the volume has {} already, and volumes do not \
             shrink",
            Exact(limit),
            Exact(bytes)
        )));
    }
    if bytes >= required {
        return Ok(bytes);
    }
    rounded(required, limit, sizes)
}

/// Explains that the request was raised to `bytes`; returns `None` if that is the requested size.
pub(super) fn raised(bytes: u64, range: Option<CapacityRange>, usage: &Usage) -> Option<String> {
    let (required, _) = bounds(range);
    if required == 0 || required >= bytes {
        return None;
    }
    let why = match usage {
        Usage::Filesystem(fs_type) if support::smallest(fs_type) == Some(bytes) => {
            format!("the minimum for {}", support::filesystem(fs_type))
        }
        _ => "the next size that the storage supports".to_owned(),
    };
    let (requested, bytes) = (Exact(required), Exact(bytes));
    Some(format!(
        " (requested: {requested}, raised to {bytes}, {why})"
    ))
}

/// Explains why a volume of `bytes` is outside the range; returns `None` if it is within the range.
pub(super) fn outside(bytes: u64, range: Option<CapacityRange>) -> Option<String> {
    let (required, limit) = bounds(range);
    if bytes < required {
        return Some(format!(
            "it has {}, less than the requested {}",
            Exact(bytes),
            Exact(required)
        ));
    }
    let text = || {
        format!(
            "it has {}, more than the limit of {}",
            Exact(bytes),
            Exact(limit)
        )
    };
    (bytes > limit).then(text)
}

fn bounds(range: Option<CapacityRange>) -> (u64, u64) {
    let Some(CapacityRange {
        required_bytes,
        limit_bytes,
    }) = range
    else {
        return (0, u64::MAX);
    };
    (
        required_bytes,
        if limit_bytes == 0 {
            u64::MAX
        } else {
            limit_bytes
        },
    )
}

fn rounded(requested: u64, limit: u64, sizes: Sizes) -> Result<u64, Failure> {
    let largest = |rounded: u64| {
        Failure::range(format!(
            "capacity_range.required_bytes: {} needed; the largest volume has {}",
            Exact(rounded),
            Exact(sizes.max)
        ))
    };
    let bytes = requested
        .checked_next_multiple_of(sizes.step)
        .ok_or_else(|| largest(requested))?;
    if bytes > limit {
        return Err(Failure::range(format!(
            "capacity_range.limit_bytes: {}, but the smallest possible volume has {} (sizes are \
             multiples of {})",
            Exact(limit),
            Exact(bytes),
            Exact(sizes.step)
        )));
    }
    if bytes > sizes.max {
        return Err(largest(bytes));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_server::call::Kind;

    const MIB: u64 = 1 << 20;
    const SIZES: Sizes = Sizes {
        step: MIB,
        min: MIB,
        max: 1 << 44,
    };

    fn range(required_bytes: u64, limit_bytes: u64) -> Option<CapacityRange> {
        Some(CapacityRange {
            required_bytes,
            limit_bytes,
        })
    }

    fn filesystem(fs_type: &str) -> Usage {
        Usage::Filesystem(fs_type.to_owned())
    }

    #[test]
    fn a_raised_size_is_explained_by_the_filesystem_or_the_storage() {
        let explained = |asked, usage, bytes, why: Option<&str>| {
            assert_eq!(raised(bytes, asked, &usage).as_deref(), why);
        };
        let minimum = " (requested: 64 MiB, raised to 300 MiB, the minimum for xfs)";
        let asked = range(64 * MIB, 0);
        explained(asked, filesystem("xfs"), 300 * MIB, Some(minimum));
        let step = " (requested: 64 MiB, raised to 1 GiB, the next size that the storage supports)";
        explained(asked, filesystem("xfs"), 1024 * MIB, Some(step));
        explained(asked, Usage::Block, 1024 * MIB, Some(step));
        explained(asked, Usage::Block, 64 * MIB, None);
        explained(range(0, MIB), Usage::Block, MIB, None);
        explained(None, filesystem(""), 1024 * MIB, None);
    }

    #[test]
    fn a_new_volume_is_rounded_up_and_never_past_the_limit() {
        let ext4 = filesystem("ext4");
        for (asked, usage, bytes) in [
            (None, &Usage::Block, 1024 * MIB),
            (None, &ext4, 1024 * MIB),
            (range(1, 0), &Usage::Block, MIB),
            (range(MIB, MIB), &Usage::Block, MIB),
            (range(MIB + 1, 0), &Usage::Block, 2 * MIB),
            (range(MIB + 1, 2 * MIB), &Usage::Block, 2 * MIB),
            (range(0, 5 * MIB + 7), &Usage::Block, 5 * MIB),
            (range(0, 4096 * MIB), &Usage::Block, 1024 * MIB),
            (range(1, 0), &ext4, 128 * MIB),
            (range(1, 0), &filesystem(""), 128 * MIB),
            (range(1, 0), &filesystem("xfs"), 300 * MIB),
            (range(1, 0), &filesystem("btrfs"), 256 * MIB),
            (range(1 << 44, 0), &Usage::Block, 1 << 44),
        ] {
            assert_eq!(
                of_new(asked, 1024 * MIB, usage, SIZES),
                Ok(bytes),
                "{asked:?} {usage:?}"
            );
        }
    }

    #[test]
    fn where_no_size_fits_both_numbers_are_named() {
        for (asked, usage, numbers) in [
            (
                range(MIB + 1, 2 * MIB - 1),
                Usage::Block,
                ["2097151 bytes", "2 MiB"],
            ),
            (range(1, 1), Usage::Block, ["1 bytes", "1 MiB"]),
            (range(0, MIB - 1), Usage::Block, ["1048575 bytes", "1 MiB"]),
            (
                range(MIB, 100 * MIB),
                filesystem(""),
                ["100 MiB", "128 MiB"],
            ),
            (
                range(MIB, 299 * MIB),
                filesystem("xfs"),
                ["299 MiB", "300 MiB"],
            ),
            (
                range((1 << 44) + 1, 0),
                Usage::Block,
                ["16777217 MiB", "16 TiB"],
            ),
            (
                range(u64::MAX, 0),
                Usage::Block,
                ["18446744073709551615 bytes", "16 TiB"],
            ),
        ] {
            let failure = of_new(asked, 1024 * MIB, &usage, SIZES).unwrap_err();
            assert_eq!(failure.kind, Kind::Range);
            for number in numbers {
                assert!(failure.message.contains(number), "{failure}");
            }
        }
    }

    #[test]
    fn a_copy_is_as_large_as_its_source_or_larger() {
        for (asked, usage, bytes) in [
            (None, Usage::Block, Ok(5 * MIB)),
            (range(0, 5 * MIB), Usage::Block, Ok(5 * MIB)),
            (range(0, 5 * MIB - 1), Usage::Block, Err(Kind::Range)),
            (range(5 * MIB - 1, 0), Usage::Block, Ok(5 * MIB)),
            (range(4 * MIB, 0), Usage::Block, Err(Kind::Range)),
            (range(9 * MIB, 0), Usage::Block, Ok(9 * MIB)),
            (range(1 << 45, 0), Usage::Block, Err(Kind::Range)),
            (None, filesystem("xfs"), Ok(300 * MIB)),
        ] {
            let result = of_copy(asked, 5 * MIB, &usage, SIZES).map_err(|failure| failure.kind);
            assert_eq!(result, bytes, "{asked:?} {usage:?}");
        }
    }

    #[test]
    fn a_volume_grows_to_what_is_asked_and_never_shrinks() {
        for (bytes, asked, grown) in [
            (4 * MIB, range(5 * MIB, 0), Ok(5 * MIB)),
            (4 * MIB, range(4 * MIB + 1, 5 * MIB), Ok(5 * MIB)),
            (4 * MIB, range(MIB, 0), Ok(4 * MIB)),
            (4 * MIB, range(0, 4 * MIB), Ok(4 * MIB)),
            (4 * MIB, range(MIB, 2 * MIB), Err(Kind::Range)),
            (4 * MIB, range(4 * MIB + 1, 5 * MIB - 1), Err(Kind::Range)),
            (4 * MIB, range(1 << 45, 0), Err(Kind::Range)),
        ] {
            let result = of_grown(bytes, asked.unwrap(), SIZES).map_err(|failure| failure.kind);
            assert_eq!(result, grown, "{asked:?}");
        }
    }
}
