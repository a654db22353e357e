//! The profile of the driver matches the behaviour of the controller exactly.

use crate::bed::{Bed, MIB, ROOMY, create, mount};
use belay_contract::drivers::LOCAL;
use belay_proto::csi::v1 as csi;
use csi::controller_service_capability::Type;
use csi::controller_service_capability::rpc::Type as Call;
use csi::volume_capability::access_mode::Mode;

#[tokio::test]
async fn volumes_have_the_modes_of_the_profile_and_no_other() {
    let bed = Bed::new(&ROOMY);
    let _controller = bed.start();
    let mut client = bed.client().await;
    let modes = (1..).map_while(|number| Mode::try_from(number).ok());
    for mode in modes {
        let name = mode.as_str_name();
        let is_listed = LOCAL
            .access_modes
            .iter()
            .any(|listed| listed.name() == name);
        for (form, capability, is_taken) in [
            ("mount", mount("ext4", mode), is_listed),
            ("block", mount("block", mode), is_listed && LOCAL.raw_block),
        ] {
            let request = csi::CreateVolumeRequest {
                volume_capabilities: vec![capability],
                ..create(&format!("{form}-{name}"), 256 * MIB)
            };
            let answer = client.create_volume(request).await;
            assert_eq!(answer.is_ok(), is_taken, "{form} {name}: {answer:?}");
        }
    }
}

#[tokio::test]
async fn the_controller_advertises_what_the_profile_has() {
    let bed = Bed::new(&ROOMY);
    let _controller = bed.start();
    let request = csi::ControllerGetCapabilitiesRequest {};
    let answer = bed
        .client()
        .await
        .controller_get_capabilities(request)
        .await;
    let advertised = answer.unwrap().into_inner().capabilities;
    let advertised: Vec<_> = advertised
        .into_iter()
        .map(|capability| match capability.r#type.unwrap() {
            Type::Rpc(rpc) => rpc.r#type(),
        })
        .collect();
    for (call, has) in [
        (Call::PublishUnpublishVolume, LOCAL.attaches),
        (Call::GetCapacity, LOCAL.knows_room),
    ] {
        assert_eq!(advertised.contains(&call), has, "{call:?}");
    }
}
