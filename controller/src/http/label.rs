//! The label `code` of the metric.

use http::StatusCode;

/// Statuses that clouds are known to use, else their class.
pub(super) fn code(status: StatusCode) -> &'static str {
    const KNOWN: [(u16, &str); 15] = [
        (200, "200"),
        (201, "201"),
        (202, "202"),
        (204, "204"),
        (400, "400"),
        (401, "401"),
        (403, "403"),
        (404, "404"),
        (409, "409"),
        (413, "413"),
        (429, "429"),
        (500, "500"),
        (502, "502"),
        (503, "503"),
        (504, "504"),
    ];
    let code = status.as_u16();
    let known = KNOWN.iter().find(|(known, _)| *known == code);
    known.map_or_else(
        || match code / 100 {
            2 => "2xx",
            3 => "3xx",
            4 => "4xx",
            5 => "5xx",
            _ => "other",
        },
        |(_, label)| label,
    )
}
