//! Belay in guests, and what the guests' disks are good for.

#[cfg(test)]
mod belay;
#[cfg(test)]
mod blackbox;
#[cfg(test)]
mod hotplug;
#[cfg(test)]
mod local;
#[cfg(test)]
mod power;
#[cfg(test)]
mod rig;
