//! Descriptors, and methods in them by name.

use prost_reflect::{DescriptorPool, MethodDescriptor};

use crate::failure::Failure;

/// CSI 1.13 and the kubelet's plugin registration.
///
/// # Errors
/// None in a program that was built in full.
pub(super) fn own() -> Result<DescriptorPool, Failure> {
    let pool = DescriptorPool::decode(belay_proto::FILE_DESCRIPTOR_SET);
    pool.map_err(|error| Failure::Machine(format!("the built-in descriptors: {error}")))
}

/// A method by `Method`, `Service/Method`, or with the package; the last separator may be a dot.
///
/// # Errors
/// There is none, or there are several.
pub(super) fn method(pool: &DescriptorPool, name: &str) -> Result<MethodDescriptor, Failure> {
    let name = name.trim_start_matches('/').replace('/', ".");
    let all = pool
        .services()
        .flat_map(|service| service.methods().collect::<Vec<_>>());
    let is_meant = |method: &MethodDescriptor| {
        let full = method.full_name();
        full == name
            || full
                .strip_suffix(&name)
                .is_some_and(|start| start.ends_with('.'))
    };
    let found: Vec<_> = all.filter(is_meant).collect();
    match found.as_slice() {
        [method] if method.is_client_streaming() => Err(Failure::Usage(format!(
            "{name} takes a stream of requests; use grpcurl"
        ))),
        [method] => Ok(method.clone()),
        [] => Err(Failure::Usage(format!(
            "no method {name}; `belayctl rpc` lists the methods"
        ))),
        several => {
            let names: Vec<_> = several.iter().map(MethodDescriptor::full_name).collect();
            Err(Failure::Usage(format!(
                "{name} is ambiguous: {}",
                names.join(", ")
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_is_found_by_every_usual_name() {
        let pool = own().unwrap();
        for name in [
            "NodeGetInfo",
            "Node/NodeGetInfo",
            "csi.v1.Node/NodeGetInfo",
            "/csi.v1.Node/NodeGetInfo",
            "csi.v1.Node.NodeGetInfo",
        ] {
            let found = method(&pool, name).unwrap();
            assert_eq!(found.full_name(), "csi.v1.Node.NodeGetInfo", "{name}");
        }
        for name in ["GetInf", "odeGetInfo", ""] {
            assert!(method(&pool, name).is_err(), "{name}");
        }
    }
}
