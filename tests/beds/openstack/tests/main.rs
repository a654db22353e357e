//! The OpenStack bed by itself. `make openstack` starts one and runs these.

#[cfg(test)]
mod bed;
